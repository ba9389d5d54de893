"""Numbers as text: metrics, durations and spark lines.

Files hold accuracies as fractions; texts for people show them in percent.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
import itertools
import math
import re
import textwrap

_MAX_NAME = 24  # characters of a client's name
_EXACT = 9  # decimals of a percentage; its mean has three more that are exact
_LABEL_ENDS = [re.compile(rf'({spaces}|(?<=\w[{signs}])(?=[^\W\d]))')
               for spaces, signs in ((r'(?<=,)\s+|\s+(?=\()', '('),
                                     (r'\s+', '(,=:/'), (r'\s+', '(,=:/_.-'))]
_BLOCKS, _ASCII_BLOCKS = '▁▂▃▄▅▆▇█', '_.-=+*%#'


def fixed(value: float, digits: int, sign: str = '') -> str:
  """Formats a number with a number of decimals.

  The last bits of a mean depend on the order of its operations. They do not
  decide how a tie is rounded, so that all tables show one number for one mean.
  More decimals than are exact are written with an exponent.
  """
  if digits > _EXACT:
    return f'{value:{sign}.2e}'
  return f'{round(value, _EXACT) + 0.:{sign}.{digits}f}'  # no -0.0


def decimals(value: float) -> int:
  """Returns decimals for a metric: 4, fewer for a number of 10 or more.

  A number below 0.001 has three significant digits.
  """
  if 0 < abs(value) < 1e-3:
    return 2 - math.floor(math.log10(abs(value)))
  return max(0, 5 - len(f'{abs(value):.0f}'))


def metric(name: str, value: float) -> str:
  """Formats a metric of a round; accuracies are in percent."""
  if 'accuracy' in name:
    return f'{fixed(100 * value, 2)}%'
  is_usual = value == 0 or 1e-3 <= abs(value) < 1e4
  return f'{value:.{decimals(value)}f}' if is_usual else f'{value:.3g}'


def traffic_text(of_clients: float, between_servers: float = 0) -> str:
  """Formats the bytes of a round; MB are 10^6."""
  return f'{of_clients / 1e6:.3g} MB per round' + (
      f', and {between_servers / 1e6:.3g} MB between servers'
      if between_servers else '')


def flops_text(of_client: float, of_round: float) -> str:
  """Formats the FLOPs of a client in a round, and those of a round."""
  def amount(value):
    power = min(max(int(math.log10(max(value, 1))) // 3, 2), 6)
    return f'{value / 1000**power:.4g} {"MGTPE"[power - 2]}FLOP'

  shown = f'{amount(of_client)} per client and round'
  return f'{shown}, {amount(of_round)} per round'


def short_names(names: Iterable[str], numbers: Iterable[int] | None = None
                ) -> list[str]:
  """Returns names of clients for a figure: long ones are cut, and end in "…".

  Names that are equal once they are cut get the numbers of their clients, by
  default their positions.
  """
  cut = [name if len(name) <= _MAX_NAME else f'{name[:_MAX_NAME]}…'
         for name in map(str, names)]
  counts = Counter(cut)
  return [name if counts[name] == 1 else f'{name} ({number})'
          for name, number in zip(
              cut, itertools.count() if numbers is None else numbers)]


def label_lines(label: str, width: int, most: int = 0) -> list[str]:
  """Returns a label in lines of `width` characters, for tables and figures.

  Lines end after the commas and opening parentheses of settings, or if that is
  not enough between any words; a setting stays with its number, as beta=0.5.
  Where a line would still be longer than `most`, by default `width`, lines end
  within names, too, after "_", "." or "-".
  """
  lines = [label]
  for ends in _LABEL_ENDS:
    wrapper = textwrap.TextWrapper(width, break_long_words=False)
    wrapper.wordsep_re = ends
    lines = wrapper.wrap(label)
    if max(map(len, lines), default=0) <= (most or width):
      break
  return lines


def spark_line(values: Sequence[float], width: int,
               is_unicode: bool = True) -> str:
  """Returns a line of blocks whose heights are the values.

  Args:
    values: one or more. If there are more than `width`, each block is the mean
      of values that follow one another.
    width: the most characters.
    is_unicode: whether the terminal shows more than ASCII.
  """
  count = min(len(values), width)
  bounds = [len(values) * i // count for i in range(count + 1)]
  means = [sum(values[a:b]) / (b - a) for a, b in zip(bounds, bounds[1:])]
  low, high = min(means), max(means)
  blocks = _BLOCKS if is_unicode else _ASCII_BLOCKS
  if high <= low:
    return blocks[0] * count
  return ''.join(blocks[min(int(len(blocks) * (m - low) / (high - low)),
                            len(blocks) - 1)] for m in means)


def duration(seconds: float) -> str:
  """Formats seconds as 5 s, 1:05 or 1:02:05."""
  seconds = int(seconds)
  minutes, rest = divmod(seconds, 60)
  if not minutes:
    return f'{seconds} s'
  hours, minutes = divmod(minutes, 60)
  return (f'{hours}:{minutes:02}:{rest:02}' if hours
          else f'{minutes}:{rest:02}')
