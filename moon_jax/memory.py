"""Refuses runs that cannot fit, before anything is allocated."""

import contextlib
import math
import os

import jax

from moon_jax.config import Config
from moon_jax.data.dataset import Dataset
from moon_jax.engine.schedule import Shape
from moon_jax.errors import OutOfMemory
from moon_jax.errors import UserError
from moon_jax.models.base import Variables

_MOST_TOLD = 200  # characters of an error
_BYTES = 4  # of a float32 or an int32, which all of it is


def check(config: Config, model: Variables, client_bytes: int, table: Shape,
          data_bytes: int, keep_models: bool) -> None:
  """Compares what a run keeps with what host and devices have.

  Args:
    config: the configuration, for the flags to name.
    model: its shapes, as `jax.eval_shape` gives them.
    client_bytes: of what one client keeps, in the host's memory.
    table: the shape of a round's table.
    data_bytes: of the training and test examples, on each device.
    keep_models: whether rounds hand out the local models.

  Raises:
    UserError: with the sizes, and the flags that lower them.
  """
  jobs = table.jobs_per_device
  clients = client_bytes * config.num_clients
  on_device = {
      'models': _bytes(model) * (1 + keep_models * jobs),
      'what the clients of a round keep, before and after it':
          2 * client_bytes * jobs,
      'table': _BYTES * table.num_rows * table.batch_size * (
          table.num_lanes // table.num_devices),
      'data': data_bytes}
  host = _machine()
  device = (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')
  if device is None:  # the devices are the machine
    needs = {name: size * table.num_devices
             for name, size in on_device.items()}
    _compare('the run', config, {
        **needs, f'what --num_clients={config.num_clients} keep': clients
    }, host)
    return
  _compare('the run, on each device,', config, on_device, device)
  _compare('the run, on the host,', config, {
      f'what --num_clients={config.num_clients} keep': clients}, host)


def data_bytes(dataset: Dataset, shard_size: int) -> int:
  """Of the examples on a device; of the test set all.

  Args:
    dataset: the data.
    shard_size: training examples on each device, 0 for all of them.
  """
  kept = shard_size / len(dataset.train_labels) if shard_size else 1
  train = dataset.train_inputs.nbytes + dataset.train_labels.nbytes
  return dataset.nbytes - int((1 - kept) * train)


def is_exhausted(error: Exception) -> bool:
  """Whether it tells that a device's memory, or the host's, is used up."""
  return isinstance(error, MemoryError) or (
      isinstance(error, jax.errors.JaxRuntimeError)
      and 'RESOURCE_EXHAUSTED' in str(error))


@contextlib.contextmanager
def explained(config: Config):
  """Raises OutOfMemory where memory runs out within."""
  try:
    yield
  except Exception as error:
    if is_exhausted(error):
      raise explain(error, config, config.lanes) from error
    raise


def explain(error: Exception, config: Config, num_lanes: int,
            temporary_bytes: int = 0, where: str = '',
            fewer_lanes: int = 0) -> OutOfMemory:
  """What to do about an error that `is_exhausted`, with the numbers.

  Args:
    error: of JAX's.
    config: the configuration.
    num_lanes: that trained side by side, 0 where they were not chosen yet.
    temporary_bytes: of the compiled round on a device, 0 where it is not known.
    where: the run ended, and goes on from.
    fewer_lanes: see `OutOfMemory`.
  """
  reason = str(error).strip().partition('\n')[0][:_MOST_TOLD]
  limit = (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')
  have = f', of {limit / 1e9:,.1f} GB' if limit else ''
  takes = (f'; a round takes {temporary_bytes / 1e9:,.1f} GB besides what it '
           f'trains{have}' if temporary_bytes else have)
  of_lanes = f' with {num_lanes} lane(s)' if num_lanes else ''
  return OutOfMemory(
      f'out of memory{of_lanes}{where} ({reason}){takes}. Give fewer '
      f'--lanes (now {config.lanes}), a smaller --batch_size='
      f'{config.batch_size} or --num_negatives={config.num_negatives}, '
      '--dtype=bfloat16, or --shard_data', fewer_lanes)


def _compare(who, config, needs, have):
  need = sum(needs.values())
  if need > have:
    shard = '; or give --shard_data, for data that do not fit'
    parts = ', '.join(
        f'{name} {size / 1e9:,.1f}' for name, size in needs.items())
    raise UserError(
        f'{who} needs at least {need / 1e9:,.1f} GB and there are '
        f'{have / 1e9:,.1f}: {parts}. Lower --num_clients, --participation, '
        f'--num_negatives={config.num_negatives}, '
        f'--projection_dim={config.projection_dim} or --local_epochs='
        f'{config.local_epochs}{"" if config.shard_data else shard}')


def _bytes(tree) -> int:
  return sum(_BYTES * math.prod(x.shape) for x in jax.tree.leaves(tree))


def _machine() -> int:
  """Bytes of the machine's memory."""
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
