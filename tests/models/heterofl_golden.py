"""Writes heterofl_golden.npz: HeteroFL's released convolutional network.

    git clone https://github.com/diaoenmao/HeteroFL-Computation-and-\
Communication-Efficient-Federated-Learning-for-Heterogeneous-Clients DIR
    git -C DIR checkout cc40f3e46b0fab5364d62a1bb623d3764daf179d
    pip install torch pyyaml && python tests/models/heterofl_golden.py DIR

`Federation` of src/fed.py, `Local` of src/train_classifier_fed.py and the
network of src/models/conv.py train four clients of three widths: with its
scaler, masked logits, momentum, weight decay and clipped gradients, and without
batch norm. Only data, sizes and first weights are those below. It is float64,
but for the averages of `combine`, which are float32. Nothing of it is kept.
"""

import os
import pathlib
import sys
import types

import numpy as np

RATES, HIDDEN, CLASSES, SIZE = (1, .5, .25, .5), (4, 6), 3, 6
ROUNDS, EPOCHS, BATCH = 3, 2, 4
LEARNING_RATE, MOMENTUM, DECAY = .2, .9, 5e-4
SHAPES = {'conv1': (3, 3, 1, 4), 'conv2': (3, 3, 4, 6), 'out': (6, 3)}
OF_CLIENT = [0, 1, 2], [0, 1], [1, 2], [2]  # classes


def problem():
  """Returns images [N, H, W, 1], labels and clients, in order of classes."""
  random = np.random.default_rng(2010_01264)
  labels = np.concatenate([
      np.sort(random.choice(classes, 2 * BATCH)) for classes in OF_CLIENT])
  images = random.normal(size=(len(labels), SIZE, SIZE, 1)) + np.array(
      [-1, 0, 1])[labels].reshape(-1, 1, 1, 1)
  return images.astype(np.float32), labels.astype(np.int32), np.split(
      np.arange(len(labels)), len(RATES))


def initial():
  """Returns kernel and bias of each layer."""
  random = np.random.default_rng(1)
  return {name: {'kernel': random.normal(0, .4, shape).astype(np.float32),
                 'bias': random.normal(0, .1, shape[-1:]).astype(np.float32)}
          for name, shape in SHAPES.items()}


def main():
  import torch

  torch.set_default_dtype(torch.float64)
  file = pathlib.Path(__file__).absolute().with_suffix('.npz')
  os.chdir(pathlib.Path(sys.argv.pop(1), 'src'))
  sys.path.insert(0, '.')
  for name in 'torchvision', 'torchvision.utils', 'data', 'logger':
    sys.modules[name] = types.ModuleType(name)
  sys.modules['torchvision.utils'].save_image = None
  for name in ('fetch_dataset', 'make_data_loader', 'split_dataset',
               'SplitDataset'):
    setattr(sys.modules['data'], name, None)
  sys.modules['logger'].Logger = None
  from config import cfg
  cfg['device'] = 'cpu'
  import fed
  import models
  import train_classifier_fed as released

  cfg.update(
      model_name='conv', norm='none', scale=True, mask=True,
      global_model_rate=1, classes_size=CLASSES, data_shape=[1, SIZE, SIZE],
      conv={'hidden_size': [*HIDDEN]}, model_split_mode='fix', device='cpu',
      optimizer_name='SGD', momentum=MOMENTUM, weight_decay=DECAY,
      num_epochs={'global': ROUNDS, 'local': EPOCHS}, num_users=len(RATES))
  images, labels, clients = problem()

  class Loader:  # makes new batches in each epoch, since theirs are changed

    def __init__(self, at):
      self.at = at

    def __iter__(self):
      for at in np.split(self.at, len(self.at) // BATCH):
        yield {'img': [*torch.tensor(images[at]).double().permute(0, 3, 1, 2)],
               'label': [*torch.tensor(labels[at]).long()]}

  model = models.conv()
  for parameter, w in zip(model.parameters(), (
      w for layer in initial().values() for w in layer.values())):
    parameter.data = torch.tensor(w).double().permute(
        {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[w.ndim]).contiguous()
  users = list(range(len(RATES)))
  federation = fed.Federation(model.state_dict(), RATES, OF_CLIENT)
  logger = types.SimpleNamespace(append=lambda *args, **kwargs: None)
  golden = {}
  for t in range(ROUNDS):
    sent, index = federation.distribute(users)
    sent = [released.Local(
        federation.model_rate[user], Loader(clients[user]), OF_CLIENT[user]
        ).train(sent[user], LEARNING_RATE, logger) for user in users]
    federation.combine(sent, index, users)
    for w, (name, kind) in zip(federation.global_parameters.values(), (
        (name, kind) for name in SHAPES for kind in ('kernel', 'bias'))):
      golden[f'{t}_{name}_{kind}'] = np.asarray(w.numpy().transpose(
          {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[w.ndim]), np.float32)
  np.savez_compressed(file, **golden)


if __name__ == '__main__':
  main()
