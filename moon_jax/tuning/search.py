"""Ranges of settings, and seeded draws from them.

    learning_rate=log(0.001, 0.3)     log-uniform between two positive numbers
    algorithm.mu=uniform(0, 1)        uniform
    local_epochs=integer(1, 10)       whole numbers, both ends included
    weighting=choice(examples, uniform)
"""

from collections.abc import Iterator, Mapping
import itertools
import math
import re
from typing import Any, NamedTuple
import zlib

import numpy as np

from moon_jax import user_code
from moon_jax.config import Config, parts
from moon_jax.errors import require, setting, UserError
from moon_jax.runs import values

_FORMS = 'log(A, B), uniform(A, B), integer(A, B) or choice(V1, V2, ...)'
_DIGITS = 4  # of a number that is drawn
_MAX_DRAWS = 100  # per trial, to replace those that were drawn before
# Settings that are no choice: a seed that is better by chance, and the budget.
_FIXED = {
    'seed': 'What is chosen is trained with new seeds',
    'partition_seed': 'Give one value',
    'num_rounds': 'It is the budget of a trial: give one value',
    'validation_fraction': 'It measures the trials: give one value'}
# Settings that say what is learned. Each of their values is tuned by itself.
_TASK = ('dataset', 'train_examples', 'num_clients', 'partition', 'labels',
         'client_test_fraction', 'new_clients', 'attack')


class Axis(NamedTuple):
  """The values that a setting may have.

  Attributes:
    kind: log, uniform, integer or choice.
    lower: the lowest value of a range.
    upper: the highest one.
    values: those of a choice.
  """

  kind: str
  lower: float = 0
  upper: float = 0
  values: tuple[Any, ...] = ()

  @property
  def ends(self) -> tuple[Any, ...]:
    """All values of a choice, or both ends of a range."""
    return self.values or (self.lower, self.upper)

  @property
  def count(self) -> int:
    """The number of values of a choice, or of integers; else 0."""
    if self.kind == 'integer':
      return int(self.upper - self.lower) + 1
    return len(self.values)

  def at(self, part: float) -> Any:
    """Returns the value at a part of the axis, from 0 to below 1."""
    if self.kind == 'choice':
      return self.values[int(part * len(self.values))]
    if self.kind == 'integer':
      return int(self.lower + math.floor(part * (self.upper - self.lower + 1)))
    if self.kind == 'log':
      low, high = math.log(self.lower), math.log(self.upper)
      value = math.exp(low + part * (high - low))
    else:
      value = self.lower + part * (self.upper - self.lower)
    return self.rounded(value)

  def rounded(self, value: float) -> float:
    """Returns a number of a range with few digits."""
    return min(max(float(f'{value:.{_DIGITS}g}'), self.lower), self.upper)

  def __str__(self) -> str:
    return f'{self.kind}({", ".join(map(values.show, self.ends))})'

  def is_edge(self, value: Any) -> bool:
    """Returns whether a better value may lie beyond this one.

    So it is for the least and the greatest of three numbers or more, and for
    the outer twentieth of a range.
    """
    if self.kind == 'choice':
      numbers = [x for x in self.values if isinstance(x, int | float)
                 and not isinstance(x, bool)]
      return len(numbers) == len(self.values) > 2 and value in (
          min(numbers), max(numbers))
    if self.kind == 'integer':
      return value in (self.lower, self.upper)
    scale = math.log if self.kind == 'log' else float
    low, high = scale(self.lower), scale(self.upper)
    return not .05 < (scale(value) - low) / (high - low) < .95


class Space(NamedTuple):
  """What is searched.

  Attributes:
    axes: the values of each setting, by name.
    num_rounds: rounds of a trial that is trained to its end.
    seed: of the draws.
  """

  axes: Mapping[str, Axis]
  num_rounds: int
  seed: int = 0

  @property
  def size(self) -> int | None:
    """The number of combinations; None if a range has any number."""
    if all(axis.kind == 'choice' for axis in self.axes.values()):
      return math.prod(len(axis.values) for axis in self.axes.values())
    return None

  def grid(self) -> list[dict[str, Any]]:
    """Returns all combinations of choices; the last axis varies fastest."""
    return [dict(zip(self.axes, combination)) for combination in (
        itertools.product(*[axis.values for axis in self.axes.values()]))]

  def draws(self, count: int) -> list[dict[str, Any]]:
    """Returns distinct settings.

    A value depends on the seed, the name of the setting and the index of the
    trial; a choice or an integer repeats only when all have been drawn. So
    methods that are tuned on the same range get the same values. Only a
    combination that was drawn before is replaced by another one.
    """
    require(self.size is None or count <= self.size, '', f'a search of {count} '
            'trials needs as many combinations of values', self.size,
            'Try fewer, or more values')
    streams = {name: self._values(name) for name in self.axes}
    drawn = ({name: next(values) for name, values in streams.items()}
             for _ in itertools.count())
    first = [*itertools.islice(drawn, count)]
    others: Iterator = itertools.islice(drawn, _MAX_DRAWS * count)
    if self.size is not None:
      grid, rng = self.grid(), np.random.default_rng(self.seed)
      others = iter([grid[index] for index in rng.permutation(len(grid))])
    found: list[dict[str, Any]] = []
    for settings in first:
      if settings in found:
        settings = next((x for x in others if x not in found), {})
        require(settings, '', f'a search of {count} trials needs as many '
                'combinations of values', f'about {len(found)}',
                'Try fewer, or widen a range')
      found.append(settings)
    return found

  def _values(self, name: str) -> Iterator[Any]:
    """Yields the values of a setting in each trial."""
    axis = self.axes[name]
    drawn: set[float] = set()
    for index in itertools.count():
      if len(drawn) == axis.count:
        drawn.clear()
      for attempt in itertools.count():
        part = np.random.default_rng([
            self.seed, index, attempt, zlib.crc32(name.encode())]).random()
        place = int(part * axis.count) if axis.count else part
        if place not in drawn:
          break
      drawn.add(place)
      yield axis.at(part)


def task(config: Config) -> tuple[Any, ...]:
  """Returns the values of the settings that say what is learned."""
  return tuple(getattr(config, name) for name in _TASK)


def is_task(name: str) -> bool:
  """Returns whether a setting says what is learned."""
  return name.partition('.')[0] in _TASK


def axis(name: str, given: Any, where: str, is_setting: bool = True) -> Axis:
  """Returns the axis of a setting: a text such as log(0.1, 1), or a list.

  Error messages begin with `where`. Names that are no settings, of a search in
  Python, may have any values.

  Raises:
    UserError: if it is none.
  """
  if is_setting:
    values.check_name(name, where)
    require(name not in _FIXED, '', f'{where}: {name} is not tuned',
            remedy=_FIXED.get(name, ''))
    require(not is_task(name), '', f'{where}: {name} is not tuned', remedy=
            f'{setting("grid")} {name}=V1,V2 tunes the other settings for each '
            'value')
  if isinstance(given, Axis):
    return given
  if not isinstance(given, str):
    return Axis('choice', values=values.axis(name, given, where)
                if is_setting else tuple(given))
  match = re.fullmatch(r'\s*(log|uniform|integer|choice)\s*\((.*)\)\s*', given)
  if not match:
    raise UserError('', f'{where} must be {_FORMS}', repr(given))
  if match[1] == 'choice':
    return Axis('choice', values=values.parse_axis(f'{name}={match[2]}')[1]
                if is_setting else tuple(map(
                    parts.parse_value, user_code.split(match[2]))))
  ends = [parts.parse_value(word) for word in user_code.split(match[2])]
  kinds = int if match[1] == 'integer' else int | float
  if len(ends) != 2 or not all(
      isinstance(end, kinds) and not isinstance(end, bool) for end in ends):
    raise UserError('', f'{where} must have two '
                    f'{"integers" if kinds is int else "numbers"}', match[2])
  lower, upper = ends
  require(lower < upper, '', f'{where} must have the lower number first',
          match[2])
  require(match[1] != 'log' or lower > 0, '',
          f'{where} must have numbers above 0', values.show(lower),
          'Write uniform(A, B), or a first number above 0')
  return Axis(match[1], *ends if kinds is int else map(float, ends))
