"""FedDyn (Acar et al., ICLR 2021); the client state is g_i."""

from flwr.app import ArrayRecord
from flwr.app import Message
from flwr.app import MetricRecord
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

client = ClientApp()
server = ServerApp()


def make_net():
  return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


def load(path, split, is_chosen=...):
  arrays = np.load(path)
  return TensorDataset(
      torch.from_numpy(arrays[f'x_{split}'][is_chosen]),
      torch.from_numpy(arrays[f'y_{split}'][is_chosen]))


@client.train()
def train(message, context):
  config = context.run_config
  net = make_net()
  net.load_state_dict(message.content['arrays'].to_torch_state_dict())
  is_mine = (np.load(config['data'])['client_train']
             == context.node_config['partition-id'])
  examples = load(config['data'], 'train', is_mine)
  alpha = config['alpha']
  start = {k: w.clone() for k, w in net.state_dict().items()}
  if 'g' in context.state:
    g = context.state['g'].to_torch_state_dict()
  else:
    g = {k: torch.zeros_like(w) for k, w in start.items()}
  optimizer = torch.optim.SGD(
      net.parameters(), lr=config['learning-rate'], momentum=0.9)
  for _ in range(config['epochs']):
    for x, y in DataLoader(examples, config['batch-size'], shuffle=True):
      optimizer.zero_grad()
      dynamic = sum(
          alpha / 2 * ((w - start[k])**2).sum() - (g[k] * w).sum()
          for k, w in net.named_parameters())
      (F.cross_entropy(net(x), y) + dynamic).backward()
      optimizer.step()
  context.state['g'] = ArrayRecord({
      k: g[k] - alpha * (w - start[k]) for k, w in net.state_dict().items()})
  return Message(RecordDict({
      'arrays': ArrayRecord(net.state_dict()),
      'metrics': MetricRecord({'num-examples': 1})}),
      reply_to=message)


class FedDyn(FedAvg):

  def __init__(self, alpha, num_clients):
    super().__init__(fraction_evaluate=0)
    self.alpha, self.num_clients, self.h = alpha, num_clients, {}

  def configure_train(self, server_round, arrays, config, grid):
    self.start = arrays.to_torch_state_dict()
    return super().configure_train(server_round, arrays, config, grid)

  def aggregate_train(self, server_round, replies):
    replies = list(replies)
    mean, metrics = super().aggregate_train(server_round, replies)
    weights = mean.to_torch_state_dict()
    scale = self.alpha * len(replies) / self.num_clients
    for k, w in weights.items():
      self.h[k] = self.h.get(k, 0) - scale * (w - self.start[k])
      weights[k] = w - self.h[k] / self.alpha
    return ArrayRecord(weights), metrics


@server.main()
def main(grid, context):
  config = context.run_config
  torch.manual_seed(config['seed'])
  x, y = load(config['data'], 'test').tensors

  def evaluate(server_round, arrays):
    net = make_net()
    net.load_state_dict(arrays.to_torch_state_dict())
    accuracy = (net(x).argmax(1) == y).float().mean().item()
    return MetricRecord({'accuracy': accuracy})

  FedDyn(config['alpha'], num_clients=10).start(
      grid, ArrayRecord(make_net().state_dict()), config['num-rounds'],
      evaluate_fn=evaluate)
