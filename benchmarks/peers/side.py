"""What the peers' programs share: network, data, answer. Needs PyTorch only.

PYTHON benchmarks/peers/SIDE.py TASK ANSWER, with a peer's Python and its
sources in PYTHONPATH. TASK is a JSON file, see `benchmarks.peers.__main__`.
"""

from collections.abc import Callable
import importlib
import importlib.metadata
import json
import os
import pathlib
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

_BATCH = 500  # of the evaluation
_PACKAGES = ('torch', 'numpy', 'ray', 'flwr', 'pfl', 'fedjax', 'jax', 'blazefl')
_LIBRARIES = []


def allow_torchvision() -> None:
  """Lets PyPI's torchvision be imported beside PyTorch's CPU build.

  It lacks two compiled operators there, which no side uses.
  """
  try:
    importlib.import_module('torchvision')
  except RuntimeError:
    library = torch.library.Library('torchvision', 'DEF')
    for name in ('nms', 'qnms'):
      library.define(f'{name}(Tensor dets, Tensor scores, float iou_threshold)'
                     ' -> Tensor')
    _LIBRARIES.append(library)  # which ends with the last reference to it
    for name in [*sys.modules]:
      if name.split('.')[0] == 'torchvision':
        del sys.modules[name]


class Base(nn.Module):
  """MOON's network for CIFAR-10 up to its projection z [B, 256].

  As in `torch_loop`, images are channels last, ReLU follows pooling, and
  features have the order H, W, C, which needs no copy.
  """

  def __init__(self):
    super().__init__()
    self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
    self.fc1, self.fc2 = nn.Linear(400, 120), nn.Linear(120, 84)
    self.proj1, self.proj2 = nn.Linear(84, 84), nn.Linear(84, 256)

  def forward(self, x):
    x = x.contiguous(memory_format=torch.channels_last)
    x = F.relu(F.max_pool2d(self.conv1(x), 2))
    x = F.relu(F.max_pool2d(self.conv2(x), 2)).permute(0, 2, 3, 1).flatten(1)
    x = F.relu(self.fc2(F.relu(self.fc1(x))))
    return self.proj2(F.relu(self.proj1(x)))


class Network(nn.Module):
  """The whole network; peers compare `base`, and average all parameters.

  Its initial weights are always the same.
  """

  def __init__(self):
    super().__init__()
    with torch.random.fork_rng([]):
      torch.manual_seed(0)
      self.base, self.head = Base(), nn.Linear(256, 10)

  def forward(self, x):
    return self.head(self.base(x))


class Batches:
  """Shuffled batches of a client's tensors, without a data loader.

  Attributes:
    dataset: the tensors.
  """

  def __init__(self, dataset: TensorDataset, size: int,
               generator: torch.Generator | None = None):
    self.dataset, self._size, self._generator = dataset, size, generator

  def __iter__(self):
    order = torch.randperm(len(self.dataset), generator=self._generator)
    return map(self.dataset.__getitem__, order.split(self._size))


def batches(task: dict[str, Any], dataset: TensorDataset,
            generator: torch.Generator | None = None) -> Batches | DataLoader:
  """Returns the batches of peers that leave them to the user."""
  if task['is_batched']:
    return Batches(dataset, task['batch_size'], generator)
  return DataLoader(
      dataset, task['batch_size'], shuffle=True, generator=generator)


class Data(NamedTuple):
  """Normalized images [N, 3, 32, 32], labels [N]."""

  train: list[tuple[torch.Tensor, torch.Tensor]]  # of each client
  test: tuple[torch.Tensor, torch.Tensor]


def read(task: dict[str, Any]) -> Data:
  """Reads the inputs of a task, which all sides share."""
  with np.load(task['inputs']) as arrays:
    mean, std = (arrays[name].astype(np.float32) for name in ('mean', 'std'))
    normalized = lambda images: torch.from_numpy(np.ascontiguousarray(
        ((images / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)))
    labels = lambda values: torch.from_numpy(values.astype(np.int64))
    images, targets = arrays['train_inputs'], arrays['train_labels']
    ends = np.cumsum(arrays['sizes'])[:-1]
    train = [(normalized(images[at]), labels(targets[at]))
             for at in np.split(arrays['clients'], ends)]
    return Data(train, (normalized(arrays['test_inputs']),
                        labels(arrays['test_labels'])))


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
  model.eval()
  inputs, labels = data.test
  return torch.cat([model(batch).argmax(1) for batch in inputs.split(_BATCH)]
                   ).eq(labels).float().mean().item()


def main(train: Callable[[dict[str, Any], Data], tuple[
    dict[str, Any], nn.Module]]) -> None:
  """Runs a side and writes its answer.

  `train` returns what it measured, with "round_seconds", and its model, whose
  parameters are written to the file task["weights"].
  """
  def run(task):
    data = read(task)
    measured, model = train(task, data)
    if _is_first():
      np.savez(task['weights'], *[parameter.detach().contiguous().numpy()
                                  for parameter in model.parameters()])
    return measured | {'accuracy': accuracy(model, data)}

  answer(run)


def answer(run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
  """Runs a task and writes what it returns, and the versions of packages."""
  task_path, answer_path = map(pathlib.Path, sys.argv[1:3])
  task = json.loads(task_path.read_text())
  torch.set_num_threads(task['threads'])
  torch.manual_seed(0)
  found = run(task)
  if _is_first():
    answer_path.write_text(json.dumps(found | {
        'versions': {d.metadata['name']: d.version
                     for d in importlib.metadata.distributions()
                     if d.metadata['name'] in _PACKAGES}}))


def _is_first():
  """Returns whether this is the first of torchrun's processes, which agree."""
  return os.environ.get('RANK', '0') == '0'
