"""PFLlib (https://github.com/TsingZ0/PFLlib), its loop, server and clients.

Its SGD has no momentum and no weight decay, so it is replaced. Its round
includes reading each client's compressed file, as always, whose seconds are
"read_seconds", too; its evaluation runs before the first round only.
"""

import functools
import os
import pathlib
import sys
import time
import types

import numpy as np
import side
import torch


def train(task, data):
  num_clients = len(data.train)
  scratch = pathlib.Path(task['scratch'])
  for part, clients in (('train', data.train), ('test', [
      (x, y) for x, y in zip(*(t.chunk(num_clients) for t in data.test))])):
    directory = scratch / 'dataset' / 'peers' / part
    directory.mkdir(parents=True)
    for client, (x, y) in enumerate(clients):
      np.savez_compressed(
          directory / f'{client}.npz', data={'x': x.numpy(), 'y': y.numpy()})
  data.train.clear()  # PFLlib reads the files
  (scratch / 'system').mkdir()
  os.chdir(scratch / 'system')  # it reads ../dataset
  sys.path.insert(0, f'{task["source"]}/system')
  from flcore.clients import clientbase
  from flcore.servers import serveravg, servermoon

  torch.optim.SGD = functools.partial(
      torch.optim.SGD, momentum=task['momentum'],
      weight_decay=task['weight_decay'])
  make = {'fedavg': serveravg.FedAvg, 'moon': servermoon.MOON}
  server = make[task['algorithm']](types.SimpleNamespace(
      model=side.Network(), device='cpu', dataset='peers', num_classes=10,
      algorithm=task['algorithm'], num_clients=num_clients,
      global_rounds=task['num_rounds'] - 1, local_epochs=1,
      batch_size=task['batch_size'],
      local_learning_rate=task['learning_rate'], mu=task['mu'],
      tau=task['temperature'], join_ratio=1., eval_gap=task['num_rounds'],
      random_join_ratio=False, few_shot=0, time_select=False, goal='speed',
      time_threthold=10_000, save_folder_name='items', top_cnt=100,
      auto_break=False, client_drop_rate=0., train_slow_rate=0.,
      send_slow_rate=0., dlg_eval=False, dlg_gap=100, batch_num_per_client=2,
      num_new_clients=0, fine_tuning_epoch_new=0, learning_rate_decay=False,
      learning_rate_decay_gamma=1.), 0)
  reads = _measured_reads(clientbase, server)
  server.train()
  return {'round_seconds': server.Budget, 'read_seconds': reads
          }, server.global_model


def _measured_reads(clientbase, server):
  """Returns a list that will have the seconds of reading files, by round."""
  reads, seconds = [], [0.]
  read, receive = clientbase.read_client_data, server.receive_models

  def read_client_data(*args, **kwargs):
    start = time.perf_counter()
    data = read(*args, **kwargs)
    seconds[0] += time.perf_counter() - start
    return data

  def receive_models():
    reads.append(seconds[0])
    seconds[0] = 0.
    receive()

  clientbase.read_client_data = read_client_data
  server.receive_models = receive_models
  return reads


if __name__ == '__main__':
  side.main(train)
