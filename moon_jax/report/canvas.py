"""The size, the fonts and the format of the report's figures."""

from collections.abc import Callable
from collections.abc import Sequence
import io
import math
import textwrap
from typing import Any

from moon_jax.report import svg as svg_lib

_WIDTH = 4.2  # inches; on a phone 10 points are then 11 CSS pixels
_STYLE = {
    'font.family': 'sans-serif', 'font.size': 10, 'axes.titlesize': 11,
    'axes.titleweight': 'bold', 'axes.grid': True, 'grid.color': '#dddddd',
    'grid.linewidth': .6, 'axes.spines.top': False, 'axes.spines.right': False,
    'axes.axisbelow': True, 'legend.frameon': False,
    'legend.handlelength': 2.6, 'svg.fonttype': 'none'}


def svg(draw: Callable[[Any], None], height: float, name: str) -> str:
  """Returns the SVG text of a figure.

  The text depends on the arguments only, not on the date or the settings of
  the user. Texts remain texts, so they are set in a font of the reader, which
  may be narrower or wider: align texts of several lines left.

  Args:
    draw: fills an empty figure of matplotlib.
    height: inches.
    name: of the figure, from which ids within the SVG follow.
  """
  # pyplot would look for a display and keep each figure in memory.
  from matplotlib import style
  from matplotlib.figure import Figure

  with style.context(['default', _STYLE | {'svg.hashsalt': name}]):
    figure = Figure(figsize=(_WIDTH, height), layout='constrained')
    draw(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None})
  return svg_lib.clean(buffer.getvalue())


def legend_shape(labels: Sequence[str], max_length: int) -> tuple[int, int]:
  """Returns the (rows, columns) of a legend that is as wide as a figure.

  Args:
    labels: of the legend.
    max_length: characters of the longest labels that fit in two columns.
  """
  longest = max(map(len, labels), default=1)
  columns = max(1, min(5, len(labels), 2 * max_length // max(longest, 1)))
  if max_length >= 20:  # lines have wide symbols
    columns = min(columns, 2 if longest <= max_length else 1)
  return math.ceil(len(labels) / columns), columns


def wrapped(text: str, width: int) -> str:
  """Returns a text in lines of at most `width` characters."""
  return '\n'.join(textwrap.wrap(text, width)) or text
