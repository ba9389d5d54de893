"""MOON (Li et al., CVPR 2021); the client state is its previous model."""

from flwr.app import ArrayRecord
from flwr.app import Message
from flwr.app import MetricRecord
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import DirichletPartitioner
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

client = ClientApp()
server = ServerApp()


class Net(nn.Module):

  def __init__(self):
    super().__init__()
    self.features = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
    self.projection = nn.Sequential(
        nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256))
    self.head = nn.Linear(256, 10)

  def forward(self, x):
    z = self.projection(self.features(x))
    return z, self.head(z)


def make_net(arrays):
  net = Net()
  net.load_state_dict(arrays.to_torch_state_dict())
  return net


def load(config):
  return FederatedDataset(dataset=config['dataset'], partitioners={
      'train': DirichletPartitioner(
          10, 'label', config['beta'], self_balancing=False,
          seed=config['seed'])})


def tensors(examples):
  columns = examples.with_format('torch')[:]
  x = (columns['img'] / 255 - 0.47) / 0.25
  return TensorDataset(x, columns['label'])


@client.train()
def train(message, context):
  config = context.run_config
  old = message.content['arrays']
  net = make_net(old)
  frozen = [make_net(old), make_net(context.state.get('previous', old))]
  examples = tensors(
      load(config).load_partition(context.node_config['partition-id']))
  optimizer = torch.optim.SGD(
      net.parameters(), lr=config['learning-rate'], momentum=0.9,
      weight_decay=1e-5)
  for _ in range(config['epochs']):
    for x, y in DataLoader(examples, config['batch-size'], shuffle=True):
      z, logits = net(x)
      with torch.no_grad():
        others = [other(x)[0] for other in frozen]
      similarities = torch.stack(
          [F.cosine_similarity(z, other) for other in others], 1)
      contrastive = F.cross_entropy(
          similarities / config['temperature'], torch.zeros_like(y))
      optimizer.zero_grad()
      (F.cross_entropy(logits, y) + config['mu'] * contrastive).backward()
      optimizer.step()
  context.state['previous'] = ArrayRecord(net.state_dict())
  return Message(RecordDict({
      'arrays': context.state['previous'],
      'metrics': MetricRecord({'num-examples': len(examples)})}),
      reply_to=message)


@server.main()
def main(grid, context):
  config = context.run_config
  torch.manual_seed(config['seed'])
  x, y = tensors(load(config).load_split('test')).tensors

  def evaluate(server_round, arrays):
    with torch.no_grad():
      predicted = make_net(arrays)(x)[1].argmax(1)
    return MetricRecord({'accuracy': (predicted == y).float().mean().item()})

  FedAvg(fraction_evaluate=0).start(
      grid, ArrayRecord(Net().state_dict()), config['num-rounds'],
      evaluate_fn=evaluate)
