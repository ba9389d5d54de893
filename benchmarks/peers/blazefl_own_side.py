"""BlazeFL's own benchmark, with the classes of its quickstart.

Its partition, data set with transforms, network, server and trainers; only the
loop over rounds is that of `blazefl_side`. Each round ends with an evaluation,
as there, and its processes are spawned in each round.
"""

import pathlib
import sys

from blazefl.contrib import fedavg
from blazefl.reproducibility import setup_reproducibility
import blazefl_side
import side
import torch


def train(task):
  """Returns the seconds and test accuracies of all rounds."""
  sys.path.insert(0, f'{task["source"]}/examples/quickstart-fedavg')
  from dataset import PartitionedCIFAR10
  from models import FedAvgModelSelector
  from models.selector import FedAvgModelName

  seed, scratch = task['seed'], pathlib.Path(task['scratch'])
  setup_reproducibility(seed)
  common = {
      'model_selector': FedAvgModelSelector(num_classes=10, seed=seed),
      'model_name': FedAvgModelName.CNN, 'device': 'cpu', 'seed': seed,
      'num_clients': task['num_clients'], 'batch_size': task['batch_size'],
      'dataset': PartitionedCIFAR10(
          root=pathlib.Path(task['data_dir']), path=scratch / 'dataset',
          num_clients=task['num_clients'], seed=seed, partition='shards',
          num_shards=task['num_shards'])}
  server = fedavg.FedAvgBaseServerHandler(
      global_round=task['num_rounds'], sample_ratio=1., **common)
  accuracies = []
  seconds = blazefl_side.rounds(
      task, server, fedavg.FedAvgBaseClientTrainer, common | {
          'epochs': task['local_epochs'], 'lr': task['learning_rate']},
      lambda: accuracies.append(server.get_summary()['server_acc']))
  return {'round_seconds': seconds, 'accuracies': accuracies}


if __name__ == '__main__':
  torch.multiprocessing.set_start_method('spawn')
  side.answer(train)
