"""Figures of the report as SVG text.

Figures are 4.2 inches wide with texts of 10 points, which is legible on a phone
(358 CSS pixels). Panels of a figure are one below another. To place panels side
by side on wide screens, draw a figure for each: `moon_jax.report.html` places
figures that follow one another two to a row.

A method has the same colour in all figures (Okabe and Ito, Color Universal
Design, https://jfly.uni-koeln.de/color/). Lines also differ in markers, and
lines of one method in dashes. Colours with a contrast below 3 to white have a
dark edge.
"""

from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

import numpy as np

from moon_jax.report import canvas

COLORS = {'fedavg': '#0072B2', 'moon': '#D55E00', 'fedprox': '#009E73',
          'scaffold': '#CC79A7', 'solo': '#595959', 'fednova': '#56B4E9',
          'centralized': '#000000'}
OTHER_COLOR = '#7A4B12'  # of methods that COLORS lacks
PALE_COLORS = {'#56B4E9', '#E69F00', '#F0E442'}  # drawn with a dark edge
_EDGE = '#333333'

# Classes of `scatter`: the eight colours of Okabe and Ito, grey and brown.
_CLASS_COLORS = ('#0072B2', '#E69F00', '#009E73', '#D55E00', '#56B4E9',
                 '#000000', '#F0E442', '#CC79A7', '#595959', '#7A4B12')
_CLASS_MARKERS = 'os^vDPX*<>'
_MARKERS = 'os^DvPX<>*'
_DASHES = ('-', (0, (1, 1)), (0, (4, 1.2, 1, 1.2)), (0, (7, 1, 1, 1, 1, 1)))
_PUBLISHED_DASHES = (0, (5, 3))


class Line(NamedTuple):
  """The results of a method in a panel of `curves`."""

  label: str
  method: str  # a name of an algorithm
  curves_ST: np.ndarray  # [seeds, rounds], NaN where not evaluated
  published: float | None = None


class Panel(NamedTuple):
  """Axes of `curves`."""

  title: str
  lines: tuple[Line, ...]


def curves(panels: Sequence[Panel], ylabel: str, name: str) -> str:
  """Draws means over seeds by round, with bands from minimum to maximum.

  Rounds that are not evaluated for all seeds are left out. A single seed has no
  band. Published values are thin dashed lines in the colour of the method.

  Args:
    panels: axes, one below another.
    ylabel: label of the y axis, with its unit.
    name: of the figure, for ids within the SVG.

  Returns:
    SVG text.
  """
  styles = _line_styles(panels)
  published = any(line.published is not None
                  for panel in panels for line in panel.lines)
  labels = [label for label, _ in styles] + ['published'] * published
  legend_rows, columns = canvas.legend_shape(labels, 20)

  def draw(figure):
    from matplotlib.ticker import MaxNLocator

    axes = np.atleast_1d(figure.subplots(len(panels)))
    handles = {}
    for ax, panel in zip(axes, panels):
      for line in panel.lines:
        style = styles[line.label, line.method]
        handles[line.label, line.method] = _draw_line(ax, line, style)
      ax.xaxis.set_major_locator(MaxNLocator(
          7, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
      ax.set(xlabel='round', ylabel=ylabel)
      ax.set_title(canvas.wrapped(panel.title, 34), loc='left')
    handles = [*handles.values()]
    if published:
      handles += ax.plot([], [], color='black', linestyle=_PUBLISHED_DASHES,
                         linewidth=1)
    figure.legend(handles, labels, loc='outside lower center', ncols=columns)

  return canvas.svg(draw, 2.9 * len(panels) + .22 * legend_rows + .1, name)


def effects(labels: Sequence[str], means: Sequence[float],
            lows: Sequence[float], highs: Sequence[float], xlabel: str,
            name: str) -> str:
  """Draws a point and an interval for each row, and a vertical line at 0.

  Labels are above their intervals, which so have the whole width.

  Args:
    labels: of the rows, from top to bottom.
    means: the points.
    lows: lower ends of the intervals; NaN for a point without an interval.
    highs: upper ends of the intervals.
    xlabel: label of the x axis, with its unit.
    name: of the figure, for ids within the SVG.

  Returns:
    SVG text.
  """
  labels = [canvas.wrapped(label, 44) for label in labels]
  xlabel = canvas.wrapped(xlabel, 44)
  means, lows, highs = (np.asarray(x, float) for x in (means, lows, highs))
  has_interval = np.isfinite(lows) & np.isfinite(highs)
  # Points (1/72 inch) from the top: a label of 14 a line, then the interval.
  heights = np.array([14 * (label.count('\n') + 1) + 20 for label in labels])
  rows = np.cumsum(heights) - 10

  def draw(figure):
    ax = figure.subplots()
    ax.axvline(0, color='black', linewidth=1, zorder=1)
    ax.hlines(rows[has_interval], lows[has_interval], highs[has_interval],
              color=COLORS['fedavg'], linewidth=2)
    ax.plot(means, rows, 'o', color=COLORS['fedavg'], markersize=6)
    for row, label in zip(rows, labels):
      ax.annotate(label, (0, row), (0, 9), xycoords=('axes fraction', 'data'),
                  textcoords='offset points', zorder=1.5, bbox={
                      'boxstyle': 'square,pad=0', 'color': 'white'})
    ax.set(yticks=[], ylim=(heights.sum(), 0))
    ax.set_xlabel(xlabel, loc='left')
    ax.spines['left'].set_visible(False)

  margin = 26 + 14 * (xlabel.count('\n') + 1)
  return canvas.svg(draw, (heights.sum() + margin) / 72, name)


def scatter(panels: Sequence[tuple[str, np.ndarray, Sequence[Any]]],
            name: str) -> str:
  """Draws points by class, for embeddings such as t-SNE.

  Axes have no ticks, because coordinates of such embeddings have no unit.

  Args:
    panels: (title, points [N, 2], labels [N]) of each panel; they are one below
      another. A class has the same colour and marker in all panels.
    name: of the figure, for ids within the SVG.

  Returns:
    SVG text.

  Raises:
    ValueError: if there are more than 10 classes.
  """
  classes = sorted({c for _, _, labels in panels
                    for c in np.asarray(labels).tolist()})
  if len(classes) > len(_CLASS_COLORS):
    raise ValueError(f'scatter must have at most {len(_CLASS_COLORS)} classes, '
                     f'got {len(classes)}; leave out classes')
  legend_rows, columns = canvas.legend_shape([str(c) for c in classes], 10)

  def draw(figure):
    axes = np.atleast_1d(figure.subplots(len(panels)))
    for ax, (title, points_N2, labels) in zip(axes, panels):
      for i, c in enumerate(classes):
        chosen = np.asarray(points_N2)[np.asarray(labels) == c]
        ax.plot(*chosen.T, _CLASS_MARKERS[i], color=_CLASS_COLORS[i], label=c,
                markersize=5, markeredgecolor=_EDGE, markeredgewidth=.4)
      ax.set(xticks=[], yticks=[])
      ax.set_title(canvas.wrapped(title, 34), loc='left')
      ax.set_aspect('equal', 'datalim')
      ax.spines[:].set_visible(True)
    figure.legend(handles=axes[0].lines, loc='outside lower center',
                  ncols=columns, markerscale=1.4, handlelength=1.2,
                  columnspacing=1)

  return canvas.svg(draw, 3.6 * len(panels) + .24 * legend_rows + .1, name)


def _line_styles(panels):
  """Returns (label, method) -> properties of a line, the same in all panels."""
  styles, counts = {}, {}
  for line in (line for panel in panels for line in panel.lines):
    if (line.label, line.method) in styles:
      continue
    color = COLORS.get(line.method, OTHER_COLOR)
    i = counts[color] = counts.get(color, -1) + 1
    first = [*COLORS.values(), OTHER_COLOR].index(color)
    styles[line.label, line.method] = {
        'color': color, 'linestyle': _DASHES[i % len(_DASHES)],
        'marker': _MARKERS[(first + i) % len(_MARKERS)]}
  return styles


def _draw_line(ax, line, style):
  """Draws the mean, the band and the published value; returns the line."""
  from matplotlib.patheffects import withStroke

  curves_ST = np.atleast_2d(np.asarray(line.curves_ST, float))
  rounds = np.flatnonzero(np.isfinite(curves_ST).all(0))
  values = curves_ST[:, rounds]
  edge = lambda width: ([withStroke(linewidth=width, foreground=_EDGE)]
                        if style['color'] in PALE_COLORS else None)
  step = max(1, math.ceil(len(rounds) / 8))
  drawn, = ax.plot(rounds + 1, values.mean(0), **style, linewidth=1.6,
                   markersize=5, markevery=step, path_effects=edge(2.8))
  if len(values) > 1:
    ax.fill_between(rounds + 1, values.min(0), values.max(0), linewidth=0,
                    color=style['color'], alpha=.2)
  if line.published is not None:
    ax.axhline(line.published, color=style['color'], linewidth=1,
               linestyle=_PUBLISHED_DASHES, path_effects=edge(1.8))
  return drawn
