"""FL-bench (https://github.com/KarhouTam/FL-bench), its server and clients.

It normalizes each example when it is read, as always. With several workers,
which are processes of ray, each client trains on one thread.
"""

import functools
import json
import pickle
import runpy
import sys
import time

import numpy as np
import ray
import side
import torch


def train(task, data):
  sys.path.insert(0, task['source'])
  side.allow_torchvision()
  from data.utils import datasets
  from src.server.fedavg import FedAvgServer
  from src.utils import constants, models

  directory = constants.FLBENCH_ROOT / 'data' / 'cifar10'
  directory.mkdir(exist_ok=True)
  sizes = [len(y) for _, y in data.train]
  indices = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
  clients = list(range(len(sizes)))
  (directory / 'partition.pkl').write_bytes(pickle.dumps({
      'separation': {'train': clients, 'val': [], 'test': [],
                     'total': len(clients)},
      'data_indices': [{'train': at, 'val': [], 'test': []}
                       for at in indices]}))
  (directory / 'args.json').write_text(json.dumps({
      'monitor_window_name_suffix': '', 'split': 'sample'}))

  def dataset(root, args=None, **transforms):
    """Normalized already; a transform that changes nothing costs as much."""
    arrays = [torch.cat(part) for part in zip(*data.train)]
    data.train.clear()
    return datasets.BaseDataset(*arrays, list(range(10)), **transforms)

  class Network(models.DecoupledModel):
    """As `side.Network`."""

    def __init__(self, dataset, pretrained):
      super().__init__()
      network = side.Network()
      self.base, self.classifier = network.base, network.head

  constants.DATA_MEAN['cifar10'] = [0.] * 3
  constants.DATA_STD['cifar10'] = [1.] * 3
  datasets.BaseDataset._rescale_data = lambda self: None
  datasets.DATASETS['cifar10'], models.MODELS['lenet5'] = dataset, Network
  found = {'seconds': []}
  train_all = FedAvgServer.train

  def timed(server):
    """Measures each call of `train_one_round`, which `train` makes."""
    method = server.train_one_round

    def train_one_round():
      start = time.perf_counter()
      method()
      found['seconds'].append(time.perf_counter() - start)

    server.train_one_round = train_one_round
    found['server'] = server
    train_all(server)

  FedAvgServer.train = timed
  workers = task['workers']
  if workers > 1:  # it asks for the number of GPUs
    resources = ray.cluster_resources
    ray.cluster_resources = lambda: {'GPU': 0} | resources()
    ray.init = functools.partial(ray.init, runtime_env={
        'worker_process_setup_hook': side.allow_torchvision})
  sys.argv[1:] = [
      f'method={task["algorithm"]}', 'dataset.name=cifar10',
      f'optimizer.lr={task["learning_rate"]}',
      f'optimizer.momentum={task["momentum"]}',
      f'optimizer.weight_decay={task["weight_decay"]}',
      f'common.global_epoch={task["num_rounds"]}', 'common.local_epoch=1',
      'common.join_ratio=1.', f'common.batch_size={task["batch_size"]}',
      'common.use_cuda=false', 'common.client_side_evaluation=false',
      'common.test.client.interval=-1', 'common.save_log=false',
      'common.save_learning_curve_plot=false', 'common.save_metrics=false',
      *(['mode=parallel', f'parallel.num_workers={workers}',
         f'parallel.num_cpus={workers}', 'parallel.num_gpus=0']
        if workers > 1 else []),
      *([f'+moon.mu={task["mu"]}', f'+moon.tau={task["temperature"]}']
        if task['algorithm'] == 'moon' else [])]
  runpy.run_path(f'{task["source"]}/main.py', run_name='__main__')
  return {'round_seconds': found['seconds']}, found['server'].model


if __name__ == '__main__':
  side.main(train)
