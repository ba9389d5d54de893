"""Refuses runs that cannot fit, before anything is allocated."""

import math
import os

import jax

from moon_jax.config import Config
from moon_jax.engine.state import State
from moon_jax.errors import UserError

_BYTES = 4  # of a float32 or an int32, which all of it is


def check(config: Config, state: State, table_size: int, num_kept: int,
          data_bytes: int) -> None:
  """Compares what a run keeps with what the device has.

  Args:
    config: the configuration, for the flags to name.
    state: the shapes of the state, as `jax.eval_shape` gives them.
    table_size: numbers in a round's table.
    num_kept: local models that a round hands out.
    data_bytes: of the training and test examples.

  Raises:
    UserError: with the sizes, and the flags that lower them.
  """
  model, clients = _bytes(state.variables), _bytes(state.clients)
  model *= 1 + num_kept
  table = _BYTES * table_size
  need, have = model + clients + table + data_bytes, _available()
  if need > have:
    raise UserError(
        f'the run needs at least {need / 1e9:,.1f} GB and there are '
        f'{have / 1e9:,.1f}: models {model / 1e9:,.1f}, what '
        f'--num_clients={config.num_clients} keep {clients / 1e9:,.1f}, table '
        f'{table / 1e9:,.1f}, data {data_bytes / 1e9:,.1f}. Lower '
        f'--num_clients, --num_negatives={config.num_negatives}, '
        f'--projection_dim={config.projection_dim} or --local_epochs='
        f'{config.local_epochs}')


def _bytes(tree) -> int:
  return sum(_BYTES * math.prod(x.shape) for x in jax.tree.leaves(tree))


def _available() -> int:
  """Bytes of the device; on CPUs of the machine."""
  stats = jax.devices()[0].memory_stats() or {}
  machine = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  return stats.get('bytes_limit', machine)
