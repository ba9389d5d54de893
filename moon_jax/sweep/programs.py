"""Groups the runs of a sweep into programs, and splits what does not fit.

A program is the unit of work of a sweep: its runs train together, in one
process. Configurations decide which runs may share a program, then facts about
their splits (`moon_jax.simulation.agreement`), then memory. Federations are
built one after another, since those of a whole sweep may take gigabytes.
"""

import bisect
from collections.abc import Callable, Hashable, Iterator, Sequence
import math
from typing import NamedTuple

from moon_jax.config import Config
from moon_jax.simulation import agreement
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.round_spec import RoundSpec

# Maps the index of a run, and the specification of an equal run that has been
# traced, to the specification of its rounds alone.
SpecFn = Callable[[int, RoundSpec | None], RoundSpec]


class Planned(NamedTuple):
  """A program of a sweep."""

  runs: list[int]  # indices
  reason: str  # how it differs from the most similar earlier program; '' if
  # there is none


class _Group(NamedTuple):
  """Runs that could share a program if memory were unlimited."""

  runs: list[int]
  config: Config  # of the first run
  facts: dict[str, Hashable]  # `agreement.of`
  capacity: int  # runs that fit in memory together, at least 1


def plan(configs: Sequence[Config], spec_fn: SpecFn, indices: Sequence[int],
         max_runs: int = 0, num_parts: int = 1) -> list[Planned]:
  """Returns the programs of a sweep.

  Args:
    configs: valid, with open settings resolved.
    spec_fn: see `SpecFn`. Few of its results exist at a time.
    indices: of the runs to plan.
    max_runs: the most runs of a program; 0 for as many as fit in memory.
    num_parts: processes that share the programs; each part gets a program if
      there are as many runs.
  """
  groups: list[_Group] = []
  keys = [agreement.program_key(configs[index]) for index in indices]
  for key in dict.fromkeys(keys):
    groups += _agreeing([index for index, other in zip(indices, keys)
                         if other == key], configs, spec_fn)
  share = max(1, len(indices) // num_parts)
  planned = []
  for position, group in enumerate(groups):
    most = min(group.capacity, max_runs or group.capacity, share)
    count = math.ceil(len(group.runs) / most)
    size = math.ceil(len(group.runs) / count)
    reason = _reason(group, groups[:position])
    planned += [Planned(group.runs[i:i + size], reason)
                for i in range(0, len(group.runs), size)]
  return planned


def specs(spec_fn: SpecFn, indices: Sequence[int]) -> Iterator[RoundSpec]:
  """Yields the specifications of runs of one program, which is traced once."""
  spec: RoundSpec | None = None
  for index in indices:
    spec = spec_fn(index, spec)
    yield spec


def _agreeing(group: Sequence[int], configs: Sequence[Config], spec_fn: SpecFn
              ) -> list[_Group]:
  """Splits a group into runs whose splits allow one program."""
  size_of = lambda spec: sum(need.size for need in memory_lib.needs(spec))
  runs: dict[Hashable, list[int]] = {}
  largest: dict[Hashable, RoundSpec] = {}
  for index, spec in zip(group, specs(spec_fn, group)):
    key = tuple(agreement.of(spec).items())
    runs.setdefault(key, []).append(index)
    largest[key] = max(largest.get(key, spec), spec, key=size_of)
  found = []
  for key, indices in runs.items():
    of_all = [largest[key]] * len(indices)
    capacity = max(1, bisect.bisect_left(
        range(1, len(indices) + 1), True,
        key=lambda count: memory_lib.excess(*of_all[:count]) > 0))
    found.append(_Group(indices, configs[indices[0]], dict(key), capacity))
  return found


def _reason(group, earlier):
  """Returns how a group differs from the most similar earlier one."""
  return ', '.join(min((
      _unequal(agreement.program_parts(group.config),
               agreement.program_parts(other.config))
      or _unequal(group.facts, other.facts) for other in earlier),
                       key=len, default=()))


def _unequal(a, b):
  return [name for name in {**a, **b}
          if name not in a or name not in b or a[name] != b[name]]
