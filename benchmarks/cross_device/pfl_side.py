"""The pfl-research side: one run in a process, or one per core with torchrun.

PYTHON benchmarks/cross_device/pfl_side.py TASK ANSWER
PYTHON -m torch.distributed.run --nproc_per_node=2 .../pfl_side.py TASK ANSWER

Needs pfl and PyTorch (`pip install 'pfl[pytorch]'`), not moon_jax. Algorithm,
simulation, model and evaluation are those of the installed package. The
network, its loss and metrics, and the order of the calls are those of the
benchmark in https://github.com/apple/pfl-research (commit c9d1f32, Apache-2.0,
Copyright 2023-2024 Apple Inc.), which the package does not contain:

  benchmarks/model/pytorch/cnn.py (simple_cnn), layer.py, metrics.py
  benchmarks/image_classification/pytorch/train.py

Differences from that benchmark: users, cohorts and initial weights come from
the file of inputs. Dropout can be switched off. The test set is evaluated after
every `eval_every` rounds, counted from 1, in batches of 500 instead of 10,000,
which need 4 GB on a CPU. Users are evaluated before and after training in the
first round only, where pfl always does this.
"""

import importlib.metadata
import itertools
import json
import os
import pathlib
import resource
import sys
import time
import types

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
import torch
from torch import nn

_EVALUATION_BATCH = 500
_PACKAGES = ('pfl', 'torch', 'numpy')


class Transpose2D(nn.Module):
  """[B, H, W, C] -> [B, C, H, W]."""

  def forward(self, inputs):
    return inputs.permute((0, 3, 1, 2))


def simple_cnn(shape, num_outputs, has_dropout):
  """Returns the network of pfl-research's benchmark."""
  rates = (.25, .5) if has_dropout else (0., 0.)
  flat_size = ((shape[0] - 4) // 2) * ((shape[1] - 4) // 2) * 64
  model = nn.Sequential(
      Transpose2D(),
      nn.Conv2d(shape[-1], 32, kernel_size=(3, 3)),
      nn.ReLU(),
      nn.Conv2d(32, 64, kernel_size=(3, 3)),
      nn.ReLU(),
      nn.MaxPool2d((2, 2)),
      nn.Dropout(rates[0]),
      nn.Flatten(),
      nn.Linear(flat_size, 128),
      nn.ReLU(),
      nn.Dropout(rates[1]),
      nn.Linear(128, num_outputs))
  model.loss = types.MethodType(_loss, model)
  model.metrics = types.MethodType(_metrics, model)
  return model


def _loss(self, inputs, targets, eval=False):
  self.eval() if eval else self.train()
  return nn.CrossEntropyLoss(reduction='mean')(self(inputs), targets)


@torch.no_grad()
def _metrics(self, inputs, targets, eval=True):
  self.eval() if eval else self.train()
  logits = self(inputs)
  loss = nn.CrossEntropyLoss(reduction='sum')(logits, targets).item()
  correct = (logits.argmax(-1) == targets).float().sum().item()
  return {'loss': Weighted(loss, len(inputs)),
          'accuracy': Weighted(correct, len(inputs))}


def load_weights(model, arrays):
  """Copies the weights of the Flax network; its features are in order H, W, C.
  """
  convs = [m for m in model if isinstance(m, nn.Conv2d)]
  denses = [m for m in model if isinstance(m, nn.Linear)]
  channels = convs[-1].out_channels
  with torch.no_grad():
    for i, layer in enumerate(convs):
      layer.weight.copy_(torch.tensor(
          arrays[f'Conv_{i}/kernel'].transpose(3, 2, 0, 1)))
      layer.bias.copy_(torch.tensor(arrays[f'Conv_{i}/bias']))
    for i, layer in enumerate(denses):
      kernel = arrays[f'Dense_{i}/kernel']
      if not i:
        side = round((len(kernel) // channels)**.5)
        kernel = kernel.reshape(side, side, channels, -1).transpose(
            2, 0, 1, 3).reshape(kernel.shape)
      layer.weight.copy_(torch.tensor(kernel.T))
      layer.bias.copy_(torch.tensor(arrays[f'Dense_{i}/bias']))


class Recorder(CentralEvaluationCallback):
  """Measures rounds, and evaluates after every `eval_every` of them."""

  def __init__(self, task, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self._task = task
    self.accuracies, self.losses = {}, {}
    self.round_seconds, self.evaluation_seconds = [], []

  def on_train_begin(self, *, model):
    self._evaluate(model, 0)
    self._start = time.perf_counter()
    return Metrics()

  def after_central_iteration(self, aggregate_metrics, model, *,
                              central_iteration):
    now, done = time.perf_counter(), central_iteration + 1
    self.round_seconds.append(now - self._start)
    if done % self._task['eval_every'] == 0 or (
        done == self._task['num_rounds']):
      self._evaluate(model, done)
      self.evaluation_seconds.append(time.perf_counter() - now)
    self._start = time.perf_counter()
    return False, Metrics()

  def _evaluate(self, model, done):
    metrics = self._eval(model)[1].to_simple_dict()
    self.accuracies[done] = metrics['Central val | accuracy']
    self.losses[done] = metrics['Central val | loss']


def train(task):
  """Trains and returns the measurements of this process."""
  start = time.perf_counter()
  torch.set_num_threads(task['threads'])
  torch.manual_seed(task['seed'])
  np.random.seed(task['seed'])
  with np.load(task['inputs']) as file:
    arrays = {name: file[name] for name in file}
  mean, std = (arrays[name].astype(np.float32) for name in ('mean', 'std'))
  normalized = lambda images: torch.from_numpy(
      (images.astype(np.float32) / 255 - mean) / std)  # float32 throughout
  labels = lambda values: torch.tensor(values.astype(np.int64))
  # User by user, so that no second copy of the data counts as pfl's memory.
  users = {user: (normalized(arrays['train_inputs'][indices]),
                  labels(arrays['train_labels'][indices]))
           for user, indices in enumerate(arrays['clients'])}
  cohorts = arrays['cohorts']
  sampler = itertools.cycle(int(user) for user in cohorts.flatten())
  network = simple_cnn(
      arrays['train_inputs'].shape[1:], task['num_classes'],
      task['has_dropout'])
  load_weights(network, arrays)
  model = PyTorchModel(
      model=network, local_optimizer_create=torch.optim.SGD,
      central_optimizer=torch.optim.SGD(network.parameters(), 1.))
  backend = SimulatedBackend(
      training_data=FederatedDataset.from_slices(users, lambda: next(sampler)),
      val_data=None, postprocessors=[WeightByUser()])
  evaluation = NNEvalHyperParams(local_batch_size=_EVALUATION_BATCH)
  recorder = Recorder(
      task, Dataset(raw_data=[normalized(arrays['test_inputs']),
                              labels(arrays['test_labels'])]),
      model_eval_params=evaluation)
  setup_seconds = time.perf_counter() - start
  FederatedAveraging().run(
      algorithm_params=NNAlgorithmParams(
          central_num_iterations=task['num_rounds'],
          evaluation_frequency=task['num_rounds'] + 1,
          train_cohort_size=cohorts.shape[1], val_cohort_size=0),
      backend=backend, model=model,
      model_train_params=NNTrainHyperParams(
          local_learning_rate=task['learning_rate'],
          local_num_epochs=task['local_epochs'],
          local_batch_size=task['batch_size']),
      model_eval_params=evaluation, callbacks=[recorder])
  return {
      'setup_seconds': setup_seconds, 'compile_seconds': 0.,
      'round_seconds': recorder.round_seconds,
      'evaluation_seconds': recorder.evaluation_seconds,
      'num_examples': cohorts[0].size * arrays['clients'].shape[1]
                      * task['local_epochs'],
      'accuracies': recorder.accuracies, 'losses': recorder.losses,
      'num_parameters': sum(p.numel() for p in network.parameters()),
      'peak_bytes': resource.getrusage(
          resource.RUSAGE_SELF).ru_maxrss * 1024,
      'threads': task['threads'],
      'versions': {name: importlib.metadata.version(name)
                   for name in _PACKAGES}}


def main():
  task_path, answer_path = map(pathlib.Path, sys.argv[1:])
  answer = train(json.loads(task_path.read_text()))
  rank = os.environ.get('RANK', '0')
  answer_path.with_suffix(f'.{rank}.json').write_text(json.dumps(answer))


if __name__ == '__main__':
  main()
