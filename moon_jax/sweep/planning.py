"""Plans the programs of a sweep, and why runs are in another program."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

from moon_jax.config import Config
from moon_jax.simulation import agreement
from moon_jax.simulation import memory_check
from moon_jax.simulation import program_fields
from moon_jax.simulation import round_spec
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.sweep import programs

_MAX_NAMED = 3  # differences that a reason names


class Planned(NamedTuple):
  """A program of a sweep."""

  runs: list[int]  # indices
  specs: list[RoundSpec]  # of each run alone
  reason: str  # why it is not in the program before it; '' for the first
  split: str  # why runs that could share the program do not; '' if all do


class _Group(NamedTuple):
  """Runs that could share a program if memory were unlimited."""

  runs: list[int]
  specs: list[RoundSpec]
  config: Config  # of the first run


def plan(configs: Sequence[Config], federation_fn: Callable[[int], Federation],
         indices: Sequence[int], max_runs: int = 0, num_parts: int = 1
         ) -> list[Planned]:
  """Returns the programs of a sweep.

  Args:
    configs: valid, with open settings resolved.
    federation_fn: maps an index of `configs` to its federation.
    indices: of the runs to plan.
    max_runs: the most runs of a program; 0 for as many as fit in memory.
    num_parts: processes that share the programs; each part gets a program if
      there are as many runs.
  """
  groups = []
  for positions in programs.groups([configs[index] for index in indices]):
    group = [indices[position] for position in positions]
    specs: dict[int, RoundSpec] = {}
    like: RoundSpec | None = None
    for index in group:
      specs[index] = round_spec.alone(federation_fn(index), like)
      like = specs[index]
    for runs in programs.agreeing(group, list(specs.values())):
      groups.append(_Group(
          runs, [specs[index] for index in runs], configs[runs[0]]))
  share = max(1, len(indices) // num_parts)
  planned = []
  for position, group in enumerate(groups):
    capacity = programs.capacity(group.specs)
    specs = dict(zip(group.runs, group.specs))
    parts = programs.split(
        group.runs, min(capacity, max_runs or capacity, share))
    split = '' if len(parts) == 1 else _split_reason(
        group.specs, capacity, max_runs, share, num_parts)
    for runs in parts:
      planned.append(Planned(
          runs, [specs[index] for index in runs],
          _reason(group, groups[:position]), split))
  return planned


def _split_reason(specs, capacity, max_runs, share, num_parts):
  """Returns which limit splits the runs of a group."""
  most = min(capacity, max_runs or capacity, share)
  if most == max_runs:
    return f'--max_runs={max_runs}'
  if most == share and share < capacity:
    return f'--part=I/{num_parts}, so that all {num_parts} parts have runs'
  runs = [programs.largest(specs)] * len(specs)
  need = max(memory_check.needs(*runs), key=lambda need: need.size - need.have)
  return (f'{len(specs)} runs need {need.size / 1e9:,.3g} GB of memory, '
          f'{need.where} has {need.have / 1e9:,.3g} GB')


def _reason(group, earlier):
  """Returns how a group differs from the most similar earlier one."""
  if not earlier:
    return ''
  names = min((_differences(group, other) for other in earlier), key=len)
  more = f' and {len(names) - _MAX_NAMED} more' * (len(names) > _MAX_NAMED)
  return ', '.join(names[:_MAX_NAMED]) + more


def _differences(a: _Group, b: _Group) -> list[str]:
  """Returns the names of what two groups do not share."""
  return (_unequal(program_fields.program_parts(a.config),
                   program_fields.program_parts(b.config))
          or _unequal(agreement.of(a.specs[0]), agreement.of(b.specs[0])))


def _unequal(a, b):
  return [name for name in {**a, **b}
          if name not in a or name not in b or a[name] != b[name]]
