"""Published values, as the files of tables give them."""

from typing import Any
from typing import NamedTuple

from moon_jax.errors import UserError
from moon_jax.sweep import toml_file

# Keys of [[published]] that are not settings, and their types.
_MEASURES = ('accuracy', 'rounds', 'seconds')
_TEXTS = ('source', 'note')


class Published(NamedTuple):
  """A published value and the settings of its runs.

  Attributes:
    settings: the settings that select its runs, by name.
    measure: "accuracy" in percent, "rounds" to the baseline's accuracy, or
      "seconds" per round.
    value: the value; a mean if there were several runs.
    std: standard deviation over the runs, or None.
    n: number of runs, or None.
    source: where it was published.
    note: a sentence, or ''.
  """

  settings: dict[str, Any]
  measure: str
  value: float
  std: float | None
  n: int | None
  source: str
  note: str


def parse(entry: Any, where: str, source: str) -> Published:
  """Returns the value of a block [[published]].

  Args:
    entry: the block.
    where: the beginning of error messages.
    source: where it was published, if the block does not say.

  Raises:
    UserError: if a key is unknown, or a value has the wrong type.
  """
  if not isinstance(entry, dict):
    raise UserError(f'{where} must be a table, got {entry!r}')
  numbers = {name: entry[name] for name in (*_MEASURES, 'std', 'n')
             if name in entry}
  texts = {name: entry[name] for name in _TEXTS if name in entry}
  for name, value in numbers.items():
    if isinstance(value, bool) or not isinstance(value, int | float):
      raise UserError(f'{where}: {name} must be a number, got {value!r}')
  for name, value in texts.items():
    if not isinstance(value, str):
      raise UserError(f'{where}: {name} must be a string, got {value!r}')
  measures = [name for name in _MEASURES if name in numbers]
  if len(measures) != 1:
    raise UserError(f'{where} must have one of {", ".join(_MEASURES)}, got '
                    f'{measures or "none"}')
  n = numbers.get('n')
  return Published(
      toml_file.settings({name: value for name, value in entry.items()
                 if name not in numbers and name not in texts}, where),
      measures[0], float(numbers[measures[0]]), numbers.get('std'),
      None if n is None else int(n), texts.get('source', source),
      texts.get('note', ''))
