"""What a run keeps in memory, part by part, and the flags that lower each part.

Sizes are in bytes and lower bounds: what a compiled round takes besides is
known only once it is compiled.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax

from moon_jax.config import Config
from moon_jax.data.dataset import Dataset
from moon_jax.engine import schedule
from moon_jax.engine import training_set
from moon_jax.engine.schedule import Shape
from moon_jax.models.base import Variables

_BYTES = 4  # of a float32 or an int32
_SMALLER = {'resnet50': 'resnet18', 'resnet18': 'simple_cnn'}


class Run(NamedTuple):
  """What the sizes of a run follow from."""

  config: Config
  model: Variables  # shapes, as `jax.eval_shape` gives them
  dataset: Dataset  # with the test examples that are evaluated
  table: Shape  # of a round
  client_bytes: int  # state of one client
  begins_empty: bool  # whether the state of all clients is zeros at first
  num_stateful: int  # clients whose state takes memory (`num_stateful`)
  shard_size: int  # training examples moved to a device each round; 0: all stay
  frozen_bytes: int  # representations of frozen models, on each device
  keep_models: bool  # whether rounds return the local models


class Part(NamedTuple):
  """Something that a run keeps."""

  name: str
  size: int  # bytes
  remedies: Callable[[float], list[str]]  # from the fraction of `size` that
  # would fit, above 0: flags with which it does, as clauses


def num_stateful(config: Config, cohorts: list[list[int]],
                 begins_empty: bool) -> int:
  """Returns how many clients have state that takes memory during the run.

  State of zeros takes none before it is written to, after the first round that
  a client trains in.

  Args:
    config: the configuration.
    cohorts: for each round the clients that take part.
    begins_empty: whether the state of all clients is zeros at first.
  """
  if not begins_empty:
    return config.num_clients
  return len({client for cohort in cohorts[:config.num_rounds]
              for client in cohort})


def on_device(run: Run) -> list[Part]:
  """The parts that each device has a copy of, or its own share."""
  config, table = run.config, run.table
  jobs = table.jobs_per_device
  models = 1 + run.keep_models * jobs
  rows = _BYTES * table.num_rows * table.batch_size * (
      table.num_lanes // table.num_devices)

  def of_models(fit):
    is_enough = run.keep_models and models * fit >= 1
    return (['give --client_eval_every=0'] if is_enough else []
            ) + _smaller_model(run, fit)

  return [
      Part('models', bytes_of(run.model) * models, of_models),
      Part('client state of a round, before and after it',
           2 * run.client_bytes * jobs,
           lambda fit: _fewer_sampled(config, table, fit)
           + _fewer_negatives(config, fit) + _smaller_model(run, fit)),
      Part("the round's table", rows,  # rounded up by an eighth at most
           lambda fit: _lower(config, 'local_epochs', fit * 8 / 9)),
      Part('representations of frozen models', run.frozen_bytes,
           lambda fit: _fewer_negatives(config, fit)
           + _lower(config, 'projection_dim', fit))]


def data_on_device(run: Run) -> list[Part]:
  """The examples that a device has where it has a memory of its own."""
  num_train = len(run.dataset.train_labels)
  test = _test_bytes(run) if run.keep_models else (
      _test_bytes(run) // run.table.num_devices)

  def of_training(fit):
    of_round = training_set.shard_size(
        run.table, run.config.local_epochs, num_train)
    is_enough = not run.shard_size and of_round <= num_train * fit
    return ['give --shard_data'] if is_enough else []

  return [
      Part('training examples', _train_bytes(run.dataset, run.shard_size),
           of_training),
      Part('test examples', test, lambda fit: _fewer_tested(run, fit))]


def on_host(run: Run) -> list[Part]:
  """The parts that are in the host's memory once."""
  config = run.config

  def of_clients(fit):
    return (_fewer_stateful(run, int(run.num_stateful * fit))
            + _fewer_negatives(config, fit) + _smaller_model(run, fit))

  def of_copies(fit):
    return (['give --checkpoint_every=0'] + _fewer_clients(run, fit)
            + _fewer_negatives(config, fit) + _smaller_model(run, fit))

  # Orbax copies what it saves, and restores the zeros of all clients as well.
  copies = run.client_bytes * config.num_clients * (config.checkpoint_every > 0)
  return [
      Part(f'client state of {run.num_stateful:,} '
           f'{"sampled " if run.begins_empty else ""}clients',
           run.num_stateful * run.client_bytes, of_clients),
      Part(f'client state of {config.num_clients:,} clients copied for a '
           'checkpoint',
           copies, of_copies),
      Part('training examples', _train_bytes(run.dataset), lambda fit: []),
      Part('test examples', _test_bytes(run),
           lambda fit: _fewer_tested(run, fit))]


def data_of_cores(run: Run, num_devices: int) -> list[Part]:
  """The copies of examples that cores of a CPU have besides the host's.

  Args:
    run: the run.
    num_devices: cores that are devices of this process.
  """
  shards = _train_bytes(run.dataset, run.shard_size) if run.shard_size else 0
  copies = 1 + num_devices * run.keep_models
  return [
      Part("examples of a round's clients", num_devices * shards,
           lambda fit: ['give --noshard_data']),
      Part('test examples in batches', copies * _test_bytes(run),
           lambda fit: _fewer_tested(run, fit))]


def bytes_of(tree) -> int:
  """Of arrays of float32, or of their shapes."""
  return sum(_BYTES * math.prod(x.shape) for x in jax.tree.leaves(tree))


def _train_bytes(dataset, count=0):
  """Returns the bytes of `count` training examples; 0 means all."""
  total = dataset.train_inputs.nbytes + dataset.train_labels.nbytes
  return total * count // len(dataset.train_labels) if count else total


def _test_bytes(run):
  return run.dataset.test_inputs.nbytes + run.dataset.test_labels.nbytes


def _lower(config, name, fit):
  """Lowers a flag in proportion to a size; nothing where that makes it 0."""
  now = getattr(config, name)
  return [f'lower --{name}={now} to {int(now * fit)}'] if now * fit >= 1 else []


def _fewer_tested(run, fit):
  most = int(len(run.dataset.test_labels) * fit)
  return [f'give --eval_examples={most}'] if most else []


def _fewer_negatives(config, fit):
  has_them = config.algorithm == 'moon' and config.num_negatives > 1
  return _lower(config, 'num_negatives', fit) if has_them else []


def _fewer_stateful(run, most):
  config = run.config
  if not most:
    return []
  if config.cohorts_file and run.begins_empty:
    return [f'lower --num_rounds={config.num_rounds}, or name fewer clients in '
            f'--cohorts_file, so that at most {most:,} are sampled']
  if run.begins_empty and config.cohort_size() < config.num_clients:
    return [f'lower --num_clients={config.num_clients}, --participation='
            f'{config.participation} or --num_rounds={config.num_rounds}, so '
            f'that at most {most:,} clients are sampled']
  return [f'lower --num_clients={config.num_clients} to {most}']


def _fewer_clients(run, fit):
  has_list = run.config.cohorts_file  # of clients by their number
  return [] if has_list else _lower(run.config, 'num_clients', fit)


def _fewer_sampled(config, table, fit):
  """A cohort whose jobs are few enough on each device."""
  jobs = int(table.jobs_per_device * fit)
  sizes = range(config.cohort_size(), 0, -1)
  most = next((size for size in sizes if schedule.jobs_per_device(
      size, table.num_devices) <= jobs), 0)
  if not most:
    return []
  if config.cohorts_file:
    return [f'name at most {most:,} clients a round in --cohorts_file']
  return [f'lower --num_clients={config.num_clients} or --participation='
          f'{config.participation}, so that {most:,} clients are sampled a '
          'round']


def _smaller_model(run, fit):
  """The projection's length where the model is mostly that; or another one."""
  config = run.config
  dim = config.projection_dim
  of_dim = sum(_BYTES * math.prod(x.shape) for x in jax.tree.leaves(run.model)
               if dim in x.shape) if config.projection_head else 0
  total = bytes_of(run.model)
  if of_dim > total / 2:
    most = int(dim * (1 - (1 - fit) * total / of_dim))
    if most >= 1:
      return [f'lower --projection_dim={dim} to {most}']
  if config.model in _SMALLER:
    return [f'give a smaller --model, such as {_SMALLER[config.model]}']
  return []
