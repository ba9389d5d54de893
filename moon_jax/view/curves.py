"""Numbers as text: curves, spark lines and durations.

Curves have one letter or sign each:

    1.00 |                       aaaaaaaa
         |            aaaaaaaaaaaa bbbbbb
    0.50 |     aaaaaab bbbbbbbbbbb
         | aaaab bbbb
    0.00 |abb
         +-------------------------------
          1                           20

Letters also show which curve is which without colours, in logs and in pipes.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Curve = Sequence[tuple[float, float]]  # (x, y), sorted by x

MARKS = 'abcdefghijklmnopqrstuvwxyz'
_BLOCKS, _ASCII_BLOCKS = '▁▂▃▄▅▆▇█', '_.-=+*%#'


def draw(curves: Sequence[Curve], width: int = 78, height: int = 12,
         is_unicode: bool = True) -> list[str]:
  """Returns the lines of a plot, with marks a, b, ... in the order of curves.

  A single curve has dots. Where curves overlap, their marks take turns.

  Args:
    curves: one or more; curves without points are not drawn.
    width: columns.
    height: rows of the plot, without its axis.
    is_unicode: whether the terminal shows more than ASCII.
  """
  points = np.array([point for curve in curves for point in curve])
  if not len(points):
    return []
  (x_low, y_low), (x_high, y_high) = points.min(0), points.max(0)
  if y_high <= y_low:
    pad = abs(y_high) * .1 or 1.
    y_low, y_high = y_low - pad, y_high + pad
  ticks = {row: f'{y_high - (y_high - y_low) * row / (height - 1):.3g}'
           for row in {0, height // 2, height - 1}}
  margin = max(map(len, ticks.values()))
  columns = width - margin - 2
  grid = np.full((height, columns), ' ')
  heights = [_heights(curve, columns, x_low, x_high) for curve in curves]
  for column in range(columns):
    for i in range(len(curves)):
      index = (column + i) % len(curves)
      value = heights[index][column]
      if not np.isnan(value):
        row = round((y_high - value) / (y_high - y_low) * (height - 1))
        grid[row, column] = (MARKS[index % len(MARKS)] if len(curves) > 1
                             else '•' if is_unicode else '*')
  bar, corner, dash = '│└─' if is_unicode else '|+-'
  lines = [f'{ticks.get(row, ""):>{margin}} {bar}{"".join(cells)}'.rstrip()
           for row, cells in enumerate(grid)]
  first, last = f'{x_low:g}', f'{x_high:g}'
  return [*lines, ' ' * (margin + 1) + corner + dash * columns,
          ' ' * (margin + 2) + first
          + (last.rjust(columns - len(first)) if x_high > x_low else '')]


def _heights(curve, columns, x_low, x_high):
  """Returns the height of a curve in each column; NaN outside its points.

  It is the mean of the points in a column, or interpolated if there is none.
  """
  heights = np.full(columns, np.nan)
  if not curve:
    return heights
  x, y = np.array(curve).T
  if x_high == x_low:
    heights[0] = y[-1]
    return heights
  step = (x_high - x_low) / max(columns - 1, 1)
  column = np.floor((x - x_low) / step + .5).astype(int)
  count = np.bincount(column, minlength=columns)
  return np.where(
      count, np.bincount(column, y, columns) / np.maximum(count, 1),
      np.interp(x_low + step * np.arange(columns), x, y, np.nan, np.nan))


def legend(labels: Mapping[str, str] | Sequence[str]) -> list[str]:
  """Returns a line per curve: its mark and its label."""
  return [f'{MARKS[i % len(MARKS)]}  {label}' for i, label in enumerate(labels)]


def spark_line(values: Sequence[float], width: int,
               is_unicode: bool = True) -> str:
  """Returns a line of blocks whose heights are the values.

  Args:
    values: one or more. If there are more than `width`, each block is the mean
      of values that follow one another.
    width: the most characters.
    is_unicode: see `draw`.
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
