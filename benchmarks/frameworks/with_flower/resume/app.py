"""The run of npz; if it was killed, the same command resumes it."""

import pathlib

from flwr.app import ArrayRecord
from flwr.app import ConfigRecord
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
  sent = message.content['config']
  torch.manual_seed(hash((
      config['seed'], sent['start'] + sent['server-round'],
      context.node_config['partition-id'])))
  optimizer = torch.optim.SGD(
      net.parameters(), lr=config['learning-rate'], momentum=0.9)
  for _ in range(config['epochs']):
    for x, y in DataLoader(examples, config['batch-size'], shuffle=True):
      optimizer.zero_grad()
      F.cross_entropy(net(x), y).backward()
      optimizer.step()
  return Message(RecordDict({
      'arrays': ArrayRecord(net.state_dict()),
      'metrics': MetricRecord({'num-examples': len(examples)})}),
      reply_to=message)


@server.main()
def main(grid, context):
  config = context.run_config
  torch.manual_seed(config['seed'])
  x, y = load(config['data'], 'test').tensors
  path = pathlib.Path(config['checkpoint'])
  start, weights = 0, make_net().state_dict()
  if path.exists():
    start, weights = torch.load(path)

  def evaluate(server_round, arrays):
    net = make_net()
    net.load_state_dict(arrays.to_torch_state_dict())
    torch.save((start + server_round, net.state_dict()), path)
    accuracy = (net(x).argmax(1) == y).float().mean().item()
    return MetricRecord({'accuracy': accuracy})

  FedAvg(fraction_evaluate=0).start(
      grid, ArrayRecord(weights), config['num-rounds'] - start,
      train_config=ConfigRecord({'start': start}), evaluate_fn=evaluate)
