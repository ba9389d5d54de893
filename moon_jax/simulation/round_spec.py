"""The program and array shapes from which a federation's rounds are compiled.

Simulations, forecasts and `--target` plans use it, so that they describe the
program that runs. It allocates no training state.
"""

from collections.abc import Sequence
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.algorithms.base import Batch, first_view
from moon_jax.data import augment
from moon_jax.data import clients as clients_lib
from moon_jax.distributed import devices
from moon_jax.engine import lanes, schedule, training_set
from moon_jax.engine.local import Program
from moon_jax.engine.schedule import Place, Shape
from moon_jax.models.base import Variables
from moon_jax.simulation import federation_checks
from moon_jax.simulation.federation import Federation

_MAX_FROZEN = 2**30  # bytes of frozen representations that a round may hold


class RoundSpec(NamedTuple):
  """The specification of a compiled round, without the devices."""

  federation: Federation
  program: Program
  shape: Shape  # of the rounds' tables
  steps_C: np.ndarray  # int, local steps of each client in a round
  shard_size: int  # training examples moved to a device per round; 0: all stay
  noise_std: np.ndarray | None  # float32 [N, C], on normalized inputs
  begins_empty: bool  # whether the state of all clients is initially zeros
  # What tracing gives; equal for equal data, networks and algorithms:
  example: jax.Array  # a normalized batch of one input
  model: Variables  # shapes of the network's variables
  client_bytes: int  # state of one client
  example_frozen_bytes: int  # outputs of the frozen models for one example

  @property
  def model_bytes(self) -> int:
    """Bytes of one model."""
    return bytes_of(self.model)

  @property
  def frozen_bytes(self) -> int:
    """Bytes of the frozen models' outputs that each device holds."""
    num_train = len(self.federation.data.train_labels)
    return num_train * self.example_frozen_bytes * self.program.freeze_once

  @property
  def num_stateful(self) -> int:
    """The number of clients whose state is stored during the run.

    State that is zeros, or on disk, takes no space before it is first written,
    after the first round in which the client trains.
    """
    federation = self.federation
    is_sparse = self.begins_empty or federation.client_state == 'disk'
    if not is_sparse or federation.cohorts is None:
      return federation.num_clients
    num_rounds = federation.flags().get('num_rounds')
    return len({client for cohort in federation.cohorts[:num_rounds]
                for client in cohort})


def bytes_of(tree: Any) -> int:
  """Returns the bytes of float32 arrays, or of their shapes."""
  return sum(4 * math.prod(x.shape) for x in jax.tree.leaves(tree))


def choose_lanes(federation: Federation, num_devices: int,
                 num_processes: int = 1,
                 is_cpu: bool = True) -> tuple[int, int]:
  """Returns the lanes of a run, and the devices that share them evenly.

  Args:
    federation: the federation.
    num_devices: available devices of all processes.
    num_processes: processes of the run.
    is_cpu: whether the devices are cores of a CPU.

  Raises:
    UserError: if the processes cannot share the lanes.
  """
  num_lanes = lanes.choose(
      federation.lanes, federation.cohort_size, num_devices, num_processes,
      is_cpu)
  return num_lanes, sum(devices.shares(
      num_lanes, [max(1, num_devices // num_processes)] * num_processes))


def make(federation: Federation, num_lanes: int, num_devices: int,
         like: RoundSpec | None = None) -> RoundSpec:
  """Returns the specification of the rounds of `federation`.

  Test examples are those of `federation.data`, all of them.

  Args:
    federation: the federation.
    num_lanes: of all devices together.
    num_devices: that share the lanes evenly.
    like: the specification of a federation with the same data, network and
      algorithm, which need not be traced again; None traces them.

  Raises:
    UserError: if the network cannot take the inputs of the data set, or a
      custom algorithm or network returns trees of the wrong type.
  """
  sizes = clients_lib.sizes(federation.clients)
  # A batch larger than every client is all of its examples, and padding.
  batch_size = min(federation.batch_size, int(sizes.max()))
  steps_C = federation.local_epochs * schedule.steps_per_epoch(
      sizes, batch_size, federation.last_batch)
  shape = schedule.shape(
      steps_C, federation.cohort_size, num_lanes, batch_size, num_devices)
  data, algorithm = federation.data, federation.algorithm
  augmentation = data.augmentation if federation.augment else 'none'
  num_train = len(data.train_labels)
  *traced, frozen_bytes = _traced(federation) if like is None else (
      like.example, like.model, like.client_bytes, like.example_frozen_bytes)
  program = Program(
      federation.model, algorithm, federation.optimizer,
      augment.AUGMENTATIONS[augmentation], _normalize_fn(data),
      keep_models=federation.evaluate_clients or federation.keep_local_models,
      clip_gradients=federation.gradient_clip > 0,
      unused_hparams=tuple(name for name in ('momentum', 'weight_decay')
                           if getattr(federation, name) == 0),
      recurring_draws=(augmentation != 'none'
                       and federation.augmentation_draws == 'recurring'),
      freeze_once=(0 < num_train * frozen_bytes < _MAX_FROZEN
                   and augmentation == 'none' and federation.local_epochs > 1
                   and federation.input_noise_std is None
                   and clients_lib.are_disjoint(federation.clients)))
  # The state of a custom algorithm may begin with any values.
  begins_empty = not (algorithm.draws_per_client
                      or federation_checks.has_user_algorithm(federation))
  return RoundSpec(
      federation, program, shape, steps_C,
      federation.shard_data and training_set.shard_size(
          shape, federation.local_epochs, num_train),
      _normalized_noise_std(federation), begins_empty, *traced, frozen_bytes)


def _traced(federation):
  """Traces and checks network and algorithm; returns the last four fields."""
  data, model = federation.data, federation.model
  algorithm = federation.algorithm
  example = _normalize_fn(data)(jnp.asarray(data.train_inputs[:1]))
  federation_checks.check_traced(federation, example)

  def trace(key):
    view = first_view(algorithm, model.init(key, example))
    batch = Batch(example, jnp.zeros(1, jnp.int32), jnp.ones(1))
    return view.variables, view.client, algorithm.frozen(model, batch, view)

  variables, *trees = jax.eval_shape(trace, jax.random.key(0))
  return (example, variables, *(
      sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
      for tree in trees))


def alone(federation: Federation,
          like: RoundSpec | None = None) -> RoundSpec:
  """Returns the specification of a run alone, on the devices of this machine.

  Raises:
    UserError: if the network cannot take the inputs of the data set.
  """
  return make(federation, *choose_lanes(
      federation, jax.device_count(), jax.process_count(),
      jax.default_backend() == 'cpu'), like)


def mean_rows(spec: RoundSpec, num_rounds: int) -> float:
  """Returns the rows of the longest lane, averaged over the first rounds."""
  federation = spec.federation
  trained = [federation.trained(index)[0] for index in range(
      min(num_rounds, federation.num_rounds or num_rounds))]
  return float(np.mean([
      schedule.rows(spec.steps_C[clients], spec.shape).max() if clients else 0
      for clients in trained]))


def together(specs: Sequence[RoundSpec], available: int,
             is_cpu: bool) -> tuple[RoundSpec, list[Place]]:
  """Returns the specification of all runs, and the place of each run's table.

  Args:
    specs: of each run alone; two or more.
    available: devices of this process.
    is_cpu: whether they are CPU cores.
  """
  first = specs[0]
  programs = [spec.program for spec in specs]
  num_lanes, num_devices = lanes.choose_for_runs(
      [spec.shape.num_lanes for spec in specs],
      [spec.shape.num_devices for spec in specs], available,
      sum(math.prod(x.shape) for x in jax.tree.leaves(first.model)),
      is_cpu)
  shape, places = schedule.places(
      [spec.shape for spec in specs], num_lanes, num_devices)
  federations = [spec.federation for spec in specs]
  shard_size = first.shard_size and training_set.shard_size(
      shape, min(f.local_epochs for f in federations),
      len(federations[0].data.train_labels))
  return first._replace(
      program=_joined(first.program, programs), shape=shape,
      steps_C=np.concatenate([spec.steps_C for spec in specs]),
      shard_size=shard_size), places


def _joined(program: Program, programs: Sequence[Program]) -> Program:
  return program._replace(
      clip_gradients=any(p.clip_gradients for p in programs),
      unused_hparams=tuple(name for name in program.unused_hparams if all(
          name in p.unused_hparams for p in programs)))


def _normalize_fn(data):
  return functools.partial(augment.normalize, mean=data.mean, std=data.std)


def _normalized_noise_std(federation):
  """Returns the deviation of the noise on normalized inputs, float32 [N, C]."""
  if federation.input_noise_std is None:
    return None
  data = federation.data
  unit_C = data.std if data.is_images else (1.,)
  return np.asarray(federation.input_noise_std)[:, None] / np.float32(unit_C)
