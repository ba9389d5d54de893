"""Draws curves as lines of text, one letter or sign per curve.

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
  y_low, y_high = _padded(y_low, y_high)
  ticks = {row: f'{y_high - (y_high - y_low) * row / (height - 1):.3g}'
           for row in {0, height // 2, height - 1}}
  margin = max(map(len, ticks.values()))
  columns = width - margin - 2
  grid = np.full((height, columns), ' ')
  for column in range(columns):
    order = [(column + i) % len(curves) for i in range(len(curves))]
    for index in order:
      value = _at(curves[index], column, columns, x_low, x_high)
      if value is not None:
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


def _padded(low, high):
  """Returns bounds that differ."""
  if high > low:
    return low, high
  pad = abs(high) * .1 or 1.
  return low - pad, high + pad


def _at(curve, column, columns, x_low, x_high) -> float | None:
  """Returns the height of a curve in a column; None outside its points."""
  if not curve:
    return None
  x, y = np.array(curve).T
  step = (x_high - x_low) / max(columns - 1, 1)
  left = x_low + (column - .5) * step
  inside = (x >= left) & (x < left + step)
  if inside.any() or not step:
    return float(y[inside].mean()) if step else (
        float(y[-1]) if not column else None)
  middle = left + step / 2
  return float(np.interp(middle, x, y)) if x[0] <= middle <= x[-1] else None


def legend(labels: Mapping[str, str] | Sequence[str]) -> list[str]:
  """Returns a line per curve: its mark and its label."""
  return [f'{MARKS[i % len(MARKS)]}  {label}' for i, label in enumerate(labels)]
