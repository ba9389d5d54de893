"""What the arithmetic of a local step predicts for the time of a round.

A round of a method differs from one of FedAvg only in its local steps:

    FedAvg               one forward and one backward pass
    FedProx, SCAFFOLD    and operations on each parameter
    MOON                 and k + 1 forward passes up to the projection z, of
                         the global model and k previous models
    MOON with l2         and one forward pass, of the global model

The operations are those that XLA counts in the program of one step before it
optimizes it; a multiply-add counts as two. Augmentation, the start and the end
of a client, and the server are left out. The forward passes of other models
count in every step, although this program computes them once per round if the
inputs of all epochs are the same, which is the case without augmentation.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.algorithms import moon, registry
from moon_jax.algorithms.base import Batch, first_view
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.engine import local
from moon_jax.simulation import build

# Shapes of examples and numbers of classes of data sets that need not be read.
_SHAPES = {
    'digits': ((32, 32, 1), 10), 'mnist': ((28, 28, 1), 10),
    'fashion_mnist': ((28, 28, 1), 10), 'svhn': ((32, 32, 3), 10),
    'cifar10': ((32, 32, 3), 10), 'cifar100': ((32, 32, 3), 100),
    'tiny_imagenet': ((64, 64, 3), 200)}


class Work(NamedTuple):
  """The arithmetic of one local step on one batch, in FLOP."""

  trained: float  # forward, backward, optimizer and the method's own terms
  frozen: float  # forward passes of models that do not train


def relative_cost(config: Config) -> float:
  """Returns the operations of a local step as a multiple of those of FedAvg.

  FedAvg has the same network, data set, batch size and local optimizer.

  Args:
    config: the configuration of a run with a built-in method.

  Raises:
    UserError: if the data set has to be read and cannot be, or the network
      cannot be made.
  """
  fedavg = dataclasses.replace(
      config, algorithm='fedavg', **{
          name: getattr(Config, name) for name in registry.METHOD_FLAGS})
  return sum(work(config)) / sum(work(fedavg))


@functools.cache
def work(config: Config) -> Work:
  """Returns the operations of one local step on a full batch.

  Raises:
    UserError: see `relative_cost`.
  """
  dataset = _empty(config)
  model = build.model(config, dataset)
  algorithm = registry.make(config)
  inputs, labels, mask = (
      jax.ShapeDtypeStruct((config.batch_size, *shape), dtype)
      for shape, dtype in (
          (dataset.train_inputs.shape[1:],
           jnp.int32 if dataset.num_tokens else jnp.float32),
          ((), jnp.int32), ((), jnp.float32)))
  view = jax.eval_shape(
      lambda key, x: first_view(algorithm, model.init(key, x)),
      jax.random.key(0), inputs)
  batch = Batch(inputs, labels, mask)
  frozen = jax.eval_shape(
      functools.partial(algorithm.frozen, model), batch, view)
  program = local.Program(
      model, algorithm, config.optimizer, lambda key, x: x, lambda x: x)

  def step(view, key, inputs, labels, mask, frozen):
    return local.step(
        program, local.start(program, view), local.Job(view, key), jnp.int32(0),
        local.TrainData(inputs, labels), mask, frozen)

  trained = _flops(step, view, jax.random.key(0), inputs, labels, mask, frozen)
  if not jax.tree.leaves(frozen):
    return Work(trained, 0)
  # The models whose projections the loss needs.
  num_frozen = 1 if config.contrastive == 'l2' else 1 + config.num_negatives
  return Work(trained, num_frozen * _flops(
      functools.partial(moon.projection, model), view.variables, batch))


def _empty(config):
  """Returns the data set without its examples."""
  if config.dataset not in _SHAPES:
    data = sources.load(config.dataset, config.data_dir)
    return data._replace(train_inputs=data.train_inputs[:0])
  shape, num_classes = _SHAPES[config.dataset]
  none, images = np.zeros(0, np.int32), np.zeros((0, *shape), np.uint8)
  return Dataset(config.dataset, images, none, images, none,
                 tuple(map(str, range(num_classes))))


def _flops(function: Any, *arguments: Any) -> float:
  """Returns the FLOP of a function, which is lowered but not compiled."""
  lowered = jax.jit(function).trace(*arguments).lower(
      lowering_platforms=('cpu',))
  return float(lowered.cost_analysis()['flops'])
