"""Flower (https://github.com/adap/flower), its strategy, runtime and messages.

Flower has no loop over batches: the client app below is the plain one, with
PyTorch's data loader or (batched) without it, and MOON is that of Flower's
baselines/moon. A client's
previous model is in its context, which travels with each message. Workers are
processes of ray; each reads the data once.
"""

import copy
import functools
import os
import time

from flwr import app
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
import side
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

os.environ['FLWR_TELEMETRY_ENABLED'] = '0'
client_app = ClientApp()
_read = functools.cache(lambda inputs: side.read({'inputs': inputs}))


@client_app.train()
def train_client(message, context):
  task, received = message.content['config'], message.content['arrays']
  torch.set_num_threads(task['threads'])
  data = TensorDataset(*_read(task['inputs']).train[
      context.node_config['partition-id']])
  network = side.Network()
  network.load_state_dict(received.to_torch_state_dict())
  contrast = _moon(network, task, context) if task['algorithm'] == 'moon' else (
      lambda images: 0.)
  optimizer = torch.optim.SGD(
      network.parameters(), task['learning_rate'], task['momentum'],
      weight_decay=task['weight_decay'])
  for images, labels in side.batches(task, data):
    optimizer.zero_grad()
    loss = F.cross_entropy(network(images), labels) + contrast(images)
    loss.backward()
    optimizer.step()
  trained = app.ArrayRecord(network.state_dict())
  if task['algorithm'] == 'moon':
    context.state['previous'] = trained
  return app.Message(app.RecordDict({
      'arrays': trained, 'metrics': app.MetricRecord({
          'num-examples': len(data)})}), reply_to=message)


def _moon(network, task, context):
  """Returns the contrastive loss; it records the global model's graph, too."""
  received, previous = copy.deepcopy(network), copy.deepcopy(network)
  if 'previous' in context.state:
    previous.load_state_dict(context.state['previous'].to_torch_state_dict())
  previous.eval().requires_grad_(False)

  def contrast(images):
    z = network.base(images)
    similarities = torch.stack([
        F.cosine_similarity(z, model.base(images))
        for model in (received, previous)], 1)
    return task['mu'] * F.cross_entropy(
        similarities / task['temperature'],
        torch.zeros(len(z), dtype=torch.long))

  return contrast


def train(task, data):
  num_clients, workers = len(data.train), task['workers']
  data.train.clear()  # which only the workers need
  network, times = side.Network(), []
  server_app = ServerApp()

  @server_app.main()
  def serve(grid, context):
    strategy = FedAvg(fraction_evaluate=0., min_available_nodes=num_clients)
    result = strategy.start(
        grid, app.ArrayRecord(network.state_dict()), task['num_rounds'],
        train_config=app.ConfigRecord(task),
        evaluate_fn=lambda *_: times.append(time.perf_counter()))
    network.load_state_dict(result.arrays.to_torch_state_dict())

  run_simulation(server_app, client_app, num_clients, backend_config={
      'init_args': {'num_cpus': workers},
      'client_resources': {'num_cpus': 1, 'num_gpus': 0.}})
  return {'round_seconds': [
      end - start for start, end in zip(times, times[1:])]}, network


if __name__ == '__main__':
  import flower_side  # so that workers import it and keep its data

  side.main(flower_side.train)
