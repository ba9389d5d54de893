"""The plain PyTorch loop of `benchmarks.torch_loop`.

With several workers these are processes of one thread each.
"""

import time
import types

import numpy as np
import side
import torch_loop


def train(task, data):
  data.train.clear()  # the loop normalizes the images itself
  with np.load(task['inputs']) as arrays:
    dataset = types.SimpleNamespace(
        train_inputs=arrays['train_inputs'], num_classes=10,
        train_labels=arrays['train_labels'],
        mean=arrays['mean'].tolist(),  # float32, since float64 needs 3 GB
        std=arrays['std'].tolist())
    clients = np.split(arrays['clients'], np.cumsum(arrays['sizes'])[:-1])
  config = types.SimpleNamespace(
      seed=0, model=types.SimpleNamespace(name='simple_cnn'), local_epochs=1,
      algorithm=types.SimpleNamespace(name=task['algorithm']), augment=False,
      batch_size=task['batch_size'], learning_rate=task['learning_rate'],
      args={'algorithm': task, 'optimizer': task}.get)
  workers = task['workers']
  loop = (torch_loop.Processes(config, dataset, clients, workers)
          if workers > 1 else torch_loop.Loop(config, dataset, clients))
  network = side.Network()
  names = [f'head.{name[4:]}' if name.startswith('out.') else f'base.{name}'
           for name in loop.model]
  initial = network.state_dict()
  loop.model = {ours: initial[name] for ours, name in zip(loop.model, names)}
  seconds = []
  for _ in range(task['num_rounds']):
    start = time.perf_counter()
    loop.run_round(range(len(clients)))
    seconds.append(time.perf_counter() - start)
  network.load_state_dict(dict(zip(names, loop.model.values())))
  return {'round_seconds': seconds}, network


if __name__ == '__main__':
  side.main(train)
