"""The settings in which the runs of a sweep differ, and their text."""

from collections.abc import Collection, Sequence
import dataclasses

from moon_jax.config import Config, FACTS, PARTS
from moon_jax.runs import values
from moon_jax.runs.grid import Sweep
from moon_jax.runs.identity import IDENTITY

# Runs that differ only in these settings are replicates, which share a row.
SEEDS = ('seed', 'partition_seed')
# Settings that are never columns unless they are axes.
_HIDDEN = {*SEEDS, *FACTS} - {*IDENTITY, 'init_from'} | {*SEEDS}

NO_VALUE = '–'  # of an argument that a function does not have

def columns(sweep: Sweep) -> list[str]:
  """Returns the settings in which rows of the table differ.

  The axes of the sweep come last, in their order. Other settings differ between
  the grids of a union.
  """
  axes = [name for name in sweep.axes if name not in SEEDS]
  others = settings_of(sweep.configs, {*_HIDDEN, *axes})
  rows = [shown(config, others) for config in sweep.configs]
  return [*differing(others, rows), *axes]


def settings_of(configs: Sequence[Config], hidden: Collection[str] = ()
                ) -> list[str]:
  """Returns the names of settings by which configurations can be told apart.

  If all have the same function of a kind, these are the arguments that one of
  them gives, as in algorithm.mu; otherwise the kind.
  """
  names = []
  for name in values.TYPES:
    if name in hidden:
      continue
    calls = [getattr(config, name) for config in configs
             ] if name in PARTS else []
    if len({call.name for call in calls}) == 1:
      given = dict.fromkeys(
          f'{name}.{key}' for call in calls for key, _ in call.arguments)
      names += [key for key in given if key not in hidden]
    else:
      names.append(name)
  return names


def differing(names: Sequence[str], rows: Sequence[Sequence[str]]
              ) -> list[str]:
  """Returns the settings in which rows differ, whose values are text.

  An argument that a function does not have differs from no other value.
  """
  return [name for name, column in zip(names, zip(*rows))
          if len({*column} - {NO_VALUE}) > 1]


def shown(config: Config, names: Sequence[str]) -> tuple[str, ...]:
  """Returns the values of settings as text, a dash for absent arguments.

  Calls are shown without arguments that are among the names themselves.
  """
  return tuple(_shown(config, name, names) for name in names)


def _shown(config, name, names):
  value = values.get(config, name)
  if name in PARTS:
    value = dataclasses.replace(value, arguments=tuple(
        (key, x) for key, x in value.arguments if f'{name}.{key}' not in names))
  kind, _, argument = name.partition('.')
  if argument and argument not in values.arguments(config, kind):
    return NO_VALUE
  return values.show(value)
