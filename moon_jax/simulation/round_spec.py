"""Builds the program and array shapes that a run's rounds are compiled from.

Runs and `--target` plans both use it, so that a plan is of the program that
runs. It allocates no training state.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import algorithms
from moon_jax import models
from moon_jax.algorithms import user
from moon_jax.config import Config
from moon_jax.data import augment
from moon_jax.data import partition
from moon_jax.data.dataset import Dataset
from moon_jax.engine import local
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine import training_set
from moon_jax.engine.local import Program
from moon_jax.engine.schedule import Shape
from moon_jax.simulation import footprint

_MAX_FROZEN = 2**30  # bytes of representations that a round keeps


class RoundSpec(NamedTuple):
  """What a round is compiled from, apart from the devices themselves."""

  program: Program
  shape: Shape  # of a round's table
  shard_size: int  # training examples moved to a device each round; 0: all stay
  example: jax.Array  # a normalised batch of one input
  noise_std: np.ndarray | None  # float32 [N, C] of feature_noise
  footprint: footprint.Run


def make(config: Config, dataset: Dataset, clients: list[np.ndarray],
         cohorts: list[list[int]], num_lanes: int, num_devices: int
         ) -> RoundSpec:
  """Returns the specification of the rounds of `config`.

  Args:
    config: the configuration, validated.
    dataset: the data, with the test examples that are evaluated.
    clients: for each client the indices of its training examples.
    cohorts: for each round the clients that take part.
    num_lanes: of all devices together.
    num_devices: that share them evenly.

  Raises:
    UserError: where the network cannot take the data set's inputs.
  """
  cohort_size = max(map(len, cohorts))
  sizes = np.array([len(indices) for indices in clients])
  # A batch larger than every client is all of its examples, and padding.
  batch_size = min(config.batch_size, int(sizes.max()))
  shape = schedule.shape(
      config.local_epochs * schedule.steps_per_epoch(sizes, batch_size),
      cohort_size, num_lanes, batch_size, num_devices)

  model = models.make(
      config.model, dataset.num_classes,
      config.projection_dim if config.projection_head else None,
      config.dtype, config.norm, dataset.num_tokens, config.precision,
      config.convolution)
  algorithm = algorithms.make(config, cohort_size)
  normalize_fn = functools.partial(
      augment.normalize, mean=dataset.mean, std=dataset.std)
  example = normalize_fn(jnp.asarray(dataset.train_inputs[:1]))
  if config.has_user_algorithm():
    user.check(config, algorithm, model, example)
  augmentation = dataset.augmentation if config.augment else 'none'
  frozen_bytes = len(dataset.train_labels) * local.frozen_bytes(
      model, algorithm, example)
  program = Program(
      model, algorithm, config.optimizer,
      augment.AUGMENTATIONS[augmentation], normalize_fn,
      keep_models=config.client_eval_every > 0,
      freeze_once=(0 < frozen_bytes < _MAX_FROZEN
                   and augmentation == 'none' and config.local_epochs > 1
                   and config.partition != 'feature_noise'
                   and partition.are_disjoint(clients)))
  shard_size = config.shard_data and training_set.shard_size(
      shape, config.local_epochs, len(dataset.train_labels))
  # A custom method's state is assumed not to be zeros.
  begins_empty = not (algorithm.per_client_init or config.has_user_algorithm())
  return RoundSpec(
      program, shape, shard_size, example,
      _noise_std(config, dataset, clients),
      footprint.Run(
          config, jax.eval_shape(model.init, jax.random.key(0), example),
          dataset, shape,
          client_bytes=state_lib.client_bytes(model, algorithm, example),
          begins_empty=begins_empty,
          num_stateful=footprint.num_stateful(config, cohorts, begins_empty),
          shard_size=shard_size,
          frozen_bytes=frozen_bytes * program.freeze_once,
          keep_models=program.keep_models))


def _noise_std(config, dataset, clients):
  """Of noise on normalised inputs: on images it is given for those in 0..1."""
  if config.partition != 'feature_noise':
    return None
  std_N = partition.noise_std(
      clients, config.noise_std, len(dataset.train_labels))
  unit_C = dataset.std if dataset.is_images else (1.,)
  return std_N[:, None] / np.float32(unit_C)
