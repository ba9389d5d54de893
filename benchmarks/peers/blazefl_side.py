"""BlazeFL (https://github.com/kitsuyaazuma/blazefl), its FedAvg.

Its server, trainers and messages. It leaves data sets and batches to the user:
here PyTorch's data loader, as in its examples, or (batched) without it. It has
no MOON, and its SGD has neither momentum nor weight decay, so the program
replaces it; its trainer without parallelism keeps one optimizer for all
clients, which the program makes again for each. Processes start in each round,
as forks.
"""

import functools
import pathlib
import time

from blazefl.contrib import fedavg
from blazefl.core import IPCMode
import side
import torch
from torch.utils.data import TensorDataset

_SGD = torch.optim.SGD


class Clients:
  """The clients' data, as parts of two tensors that processes share."""

  def __init__(self, task, data):
    self._task = task
    self._sizes = [len(labels) for _, labels in data.train]
    self._tensors = tuple(map(torch.cat, zip(*data.train)))
    data.train.clear()

  def get_dataset(self, type_, cid):
    return TensorDataset(*(
        part.split(self._sizes)[cid] for part in self._tensors))

  def set_dataset(self, type_, cid, dataset):
    """Does nothing: a client's data does not change."""

  def get_dataloader(self, type_, cid, batch_size=None, generator=None):
    return side.batches(self._task, self.get_dataset(type_, cid), generator)


class Selector:
  """Makes the network."""

  def select_model(self, model_name):
    return side.Network()


class Trainer(fedavg.FedAvgBaseClientTrainer):
  """Gives each client an optimizer of its own."""

  def train(self, model_parameters, train_loader, cid):
    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr)
    return super().train(model_parameters, train_loader, cid)


def train(task, data):
  torch.optim.SGD = functools.partial(
      _SGD, momentum=task['momentum'], weight_decay=task['weight_decay'])
  common = {
      'model_selector': Selector(), 'model_name': '', 'device': 'cpu',
      'num_clients': len(data.train), 'batch_size': task['batch_size'],
      'dataset': Clients(task, data), 'seed': 0}
  server = fedavg.FedAvgBaseServerHandler(
      global_round=task['num_rounds'], sample_ratio=1., **common)
  seconds = rounds(task, server, Trainer, common | {
      'epochs': 1, 'lr': task['learning_rate']})
  return {'round_seconds': seconds}, server.model


def rounds(task, server, single, common, end=lambda: None):
  """Trains all rounds, and returns the seconds of each.

  Args:
    task: has the number of workers, and whether they are threads.
    server: decides the clients of each round, and when to end.
    single: the class of the trainer without parallelism.
    common: arguments of all trainers.
    end: called at the end of each round, whose seconds it takes, too.
  """
  scratch, workers = pathlib.Path(task['scratch']), task['workers']
  if task['is_threaded']:
    trainer = fedavg.FedAvgThreadPoolClientTrainer(
        num_parallels=workers, **common)
  elif workers > 1:
    trainer = fedavg.FedAvgProcessPoolClientTrainer(
        share_dir=scratch / 'share', state_dir=scratch / 'state',
        num_parallels=workers, ipc_mode=IPCMode.SHARED_MEMORY, **common)
  else:
    trainer = single(**common)
  seconds = []
  while not server.if_stop():
    start = time.perf_counter()
    clients = server.sample_clients()
    trainer.local_process(server.downlink_package(), clients)
    for package in trainer.uplink_package():
      server.load(package)
    end()
    seconds.append(time.perf_counter() - start)
  return seconds


if __name__ == '__main__':
  import blazefl_side  # so that workers find its classes

  side.main(blazefl_side.train)
