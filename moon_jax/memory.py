"""Refuses runs that cannot fit, before anything is allocated."""

import math
import os

import jax

from moon_jax.config import Config
from moon_jax.engine.schedule import Shape
from moon_jax.errors import UserError
from moon_jax.models.base import Variables

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
