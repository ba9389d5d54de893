"""Groups the runs of a sweep into programs, and splits what does not fit.

A program is the unit of work of a sweep: its runs train together, in one
process. Configurations decide which runs may share a program
(`moon_jax.simulation.program_fields`), then facts about their splits
(`moon_jax.simulation.agreement`), then memory.
"""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
import math
from typing import TypeVar

from moon_jax.config import Config
from moon_jax.simulation import agreement
from moon_jax.simulation import memory_check
from moon_jax.simulation import program_fields
from moon_jax.simulation.round_spec import RoundSpec

_T = TypeVar('_T')


def groups(configs: Sequence[Config]) -> list[list[int]]:
  """Returns which configurations may share a program.

  Args:
    configs: valid, with open settings resolved.

  Returns:
    For each program the indices of its configurations, ascending; programs are
    in the order of their first configuration.
  """
  return _grouped(range(len(configs)), lambda index: (
      program_fields.program_key(configs[index])))


def _grouped(items: Sequence[_T], key: Callable[[_T], Hashable]
             ) -> list[list[_T]]:
  """Groups items with equal keys, in the order of their first item."""
  found: dict[Hashable, list[_T]] = {}
  for item in items:
    found.setdefault(key(item), []).append(item)
  return list(found.values())


def agreeing(group: Sequence[int], specs: Sequence[RoundSpec]
             ) -> list[list[int]]:
  """Splits a group into runs whose splits allow one program.

  Args:
    group: indices of runs.
    specs: for each run of the group the specification of its rounds.
  """
  by_index = dict(zip(group, specs))
  return _grouped(
      group, lambda index: tuple(agreement.of(by_index[index]).items()))


def capacity(specs: Sequence[RoundSpec]) -> int:
  """Returns how many runs like these fit in memory together, at least 1."""
  run = largest(specs)
  low, high = 1, len(specs)
  while low < high:
    middle = (low + high + 1) // 2
    if memory_check.fits(*[run] * middle):
      low = middle
    else:
      high = middle - 1
  return low


def largest(specs: Sequence[RoundSpec]) -> RoundSpec:
  """Returns the run with the most client state."""
  return max(specs, key=lambda spec: (
      spec.client_bytes * spec.federation.num_clients))


def split(group: Sequence[int], most: int) -> list[list[int]]:
  """Splits a group into as few parts as possible, of almost equal sizes.

  Args:
    group: indices of runs.
    most: runs of a part, at least 1.
  """
  count = math.ceil(len(group) / most)
  size = math.ceil(len(group) / count)
  return [list(group[i:i + size]) for i in range(0, len(group), size)]
