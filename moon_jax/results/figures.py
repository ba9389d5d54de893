"""Figures: SVG text for pages, and PNG files of `inspect` and `compare`.

Figures of pages are 4.2 inches wide with texts of 10 points, which is legible
on a phone (358 CSS pixels). Panels of a figure are one below another. To place
panels side by side on wide screens, draw a figure for each: a page places
figures that follow one another two to a row.

A method has the same colour in all figures of pages (Okabe and Ito, Color
Universal Design, https://jfly.uni-koeln.de/color/). Lines also differ in
markers, and lines of one method in dashes. Colours with a contrast below 3 to
white have a dark edge.
"""

from collections.abc import Callable
from collections.abc import Sequence
import io
import math
import pathlib
import textwrap
from typing import Any
from typing import NamedTuple

import numpy as np

from moon_jax.errors import UserError
from moon_jax.results import read
from moon_jax.results import stats
from moon_jax.results.read import Run

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
_WIDTH = 4.2  # inches; on a phone 10 points are then 11 CSS pixels
_STYLE = {
    'font.family': 'sans-serif', 'font.size': 10, 'axes.titlesize': 11,
    'axes.titleweight': 'bold', 'axes.grid': True, 'grid.color': '#dddddd',
    'grid.linewidth': .6, 'axes.spines.top': False, 'axes.spines.right': False,
    'axes.axisbelow': True, 'legend.frameon': False,
    'legend.handlelength': 2.6, 'svg.fonttype': 'none'}

# Metric -> its label. A metric with a "_std" has a band of that width.
_ACCURACIES = {
    'test_accuracy': 'test', 'validation_accuracy': 'validation',
    'global_train_accuracy': 'training',
    'global_heldout_accuracy': 'held-out, of clients',
    'local_own_accuracy': 'local models, own examples',
    'local_test_accuracy': 'local models, test'}
_LOSSES = {'train_loss': 'local objective', 'cross_entropy': 'cross-entropy',
           'contrastive_loss': 'contrastive', 'proximal_term': 'proximal term',
           'test_loss': 'test', 'validation_loss': 'validation'}
_OF_CLIENTS = {'local_own_accuracy': 'local,\nown', 'local_test_accuracy':
               'local,\ntest', 'global_own_accuracy': 'global,\nown',
               'local_heldout_accuracy': 'local,\nheld-out',
               'global_heldout_accuracy': 'global,\nheld-out'}


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


def empty(width: float, height: float) -> Any:
  """Returns an empty figure, in inches, that needs no display."""
  # pyplot would look for a display and keep each figure in memory.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), layout='constrained')
  FigureCanvasAgg(figure)
  return figure


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
  from matplotlib import style

  with style.context(['default', _STYLE | {'svg.hashsalt': name}]):
    figure = empty(_WIDTH, height)
    draw(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None})
  text = buffer.getvalue()
  return text[text.index('<svg'):]


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


def _wrapped(text: str, width: int) -> str:
  """Returns a text in lines of at most `width` characters."""
  return '\n'.join(textwrap.wrap(text, width)) or text


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
  legend_rows, columns = legend_shape(labels, 20)

  def draw(figure):
    from matplotlib.ticker import MaxNLocator

    axes = np.atleast_1d(figure.subplots(len(panels)))
    handles: dict[tuple[str, str], Any] = {}
    for ax, panel in zip(axes, panels):
      for line in panel.lines:
        style = styles[line.label, line.method]
        handles[line.label, line.method] = _draw_line(ax, line, style)
      ax.xaxis.set_major_locator(MaxNLocator(
          7, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
      ax.set(xlabel='round', ylabel=ylabel)
      ax.set_title(_wrapped(panel.title, 34), loc='left')
    drawn = [*handles.values()]
    if published:
      drawn += ax.plot([], [], color='black', linestyle=_PUBLISHED_DASHES,
                         linewidth=1)
    figure.legend(drawn, labels, loc='outside lower center', ncols=columns)

  return svg(draw, 2.9 * len(panels) + .22 * legend_rows + .1, name)


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
  labels = [_wrapped(label, 44) for label in labels]
  xlabel = _wrapped(xlabel, 44)
  low, high = np.asarray(lows, float), np.asarray(highs, float)
  has_interval = np.isfinite(low) & np.isfinite(high)
  # Points (1/72 inch) from the top: a label of 14 a line, then the interval.
  heights = np.array([14 * (label.count('\n') + 1) + 20 for label in labels])
  rows = np.cumsum(heights) - 10

  def draw(figure):
    ax = figure.subplots()
    ax.axvline(0, color='black', linewidth=1, zorder=1)
    ax.hlines(rows[has_interval], low[has_interval], high[has_interval],
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
  return svg(draw, (heights.sum() + margin) / 72, name)


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
  legend_rows, columns = legend_shape([str(c) for c in classes], 10)

  def draw(figure):
    axes = np.atleast_1d(figure.subplots(len(panels)))
    for ax, (title, points_N2, labels) in zip(axes, panels):
      for i, c in enumerate(classes):
        chosen = np.asarray(points_N2)[np.asarray(labels) == c]
        ax.plot(*chosen.T, _CLASS_MARKERS[i], color=_CLASS_COLORS[i], label=c,
                markersize=5, markeredgecolor=_EDGE, markeredgewidth=.4)
      ax.set(xticks=[], yticks=[])
      ax.set_title(_wrapped(title, 34), loc='left')
      ax.set_aspect('equal', 'datalim')
      ax.spines[:].set_visible(True)
    figure.legend(handles=axes[0].lines, loc='outside lower center',
                  ncols=columns, markerscale=1.4, handlelength=1.2,
                  columnspacing=1)

  return svg(draw, 3.6 * len(panels) + .24 * legend_rows + .1, name)


def _line_styles(panels):
  """Returns (label, method) -> properties of a line, the same in all panels."""
  styles: dict[tuple[str, str], dict[str, Any]] = {}
  counts: dict[str, int] = {}
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
  rounds, means, _ = stats.mean_curve(curves_ST)
  values = curves_ST[:, rounds - 1]
  edge = lambda width: ([withStroke(linewidth=width, foreground=_EDGE)]
                        if style['color'] in PALE_COLORS else None)
  step = max(1, math.ceil(len(rounds) / 8))
  drawn, = ax.plot(rounds, means, **style, linewidth=1.6,
                   markersize=5, markevery=step, path_effects=edge(2.8))
  if len(values) > 1:
    ax.fill_between(rounds, values.min(0), values.max(0), linewidth=0,
                    color=style['color'], alpha=.2)
  if line.published is not None:
    ax.axhline(line.published, color=style['color'], linewidth=1,
               linestyle=_PUBLISHED_DASHES, path_effects=edge(1.8))
  return drawn


# ------------------------------------------------ PNG files of single commands


def save(made: Any, path: pathlib.Path) -> None:
  """Writes a figure.

  Raises:
    UserError: if the file name has no known ending, or cannot be written.
  """
  try:
    made.savefig(path, dpi=120)
  except (OSError, ValueError) as error:
    raise UserError(f'--plot={path} must be a file that can be written, such '
                    f'as run.png; got {error}') from error


def draw(run: Run, path: pathlib.Path) -> None:
  """Draws a run to a file.

  Raises:
    UserError: if the run has no metrics yet, or the file cannot be written.
  """
  if not run.lines:
    raise UserError(f'{run.path} must have metrics to plot, got none yet; wait '
                    'for its first round')
  made = empty(10, 7)
  config = run.config
  made.suptitle(f'{config["algorithm"]}, {config["dataset"]}, seed '
                f'{config["seed"]}: {run.path.name} ({run.state.kind})')
  (accuracy, loss), (drift, clients) = made.subplots(2, 2)
  _curves(accuracy, run, _ACCURACIES, 'accuracy')
  _curves(loss, run, _LOSSES, 'loss')
  _drift(drift, run)
  _clients(clients, run)
  save(made, path)


def draw_arms(arms: Sequence[tuple[str, np.ndarray]], path: pathlib.Path
              ) -> None:
  """Draws the mean test accuracy of each arm, with its deviation.

  Args:
    arms: label and curves [S, T] of each; NaN where not evaluated.
    path: the file to write.

  Raises:
    UserError: if the file cannot be written.
  """
  made = empty(9, 5)
  axes = made.subplots()
  for label, curves_ST in arms:
    x, y, std = stats.mean_curve(curves_ST)
    if len(x):
      line, = axes.plot(
          x, y, marker='.' if len(x) < 30 else '', label='\n'.join(
              textwrap.wrap(label, 60)) + f' (n={len(curves_ST)})')
      if len(curves_ST) > 1:
        axes.fill_between(x, y - std, y + std, color=line.get_color(),
                          alpha=.15, linewidth=0)
  _finish(axes, 'test accuracy: mean ± standard deviation over seeds')
  save(made, path)


def _curves(axes, run, names, title):
  for name, label in names.items():
    series = run.series(name)
    if not series:
      continue
    x, y = np.array(series).T
    line, = axes.plot(x, y, label=label, marker='.' if len(x) < 30 else '')
    spread = dict(run.series(f'{name}_std'))
    if spread.keys() >= set(x):
      std = np.array([spread[round_] for round_ in x])
      axes.fill_between(
          x, np.maximum(y - std, 0), np.minimum(y + std, 1), alpha=.15,
          color=line.get_color(), linewidth=0)  # accuracies
  _finish(axes, title)


def _finish(axes, title):
  from matplotlib.ticker import MaxNLocator

  axes.set(title=title, xlabel='round')
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  axes.grid(alpha=.3)
  if axes.get_legend_handles_labels()[0]:
    axes.legend(fontsize=8)
  else:
    _note(axes, 'not recorded')


def _note(axes, text):
  axes.text(.5, .5, text, ha='center', va='center', transform=axes.transAxes,
            color='gray')


def _drift(axes, run):
  """The mean drift, and that of each client where it is recorded."""
  dots = [(line['round'], value) for line in run.lines
          if isinstance(line.get('clients'), dict)
          for value in line['clients'].get('drift', ())
          if read.is_number(value)]
  if dots:
    axes.plot(*np.array(dots).T, '.', color='gray', alpha=.4, markersize=4,
              label='drift of a client')
  if series := run.series('drift'):
    axes.plot(*np.array(series).T, label='mean drift')
  if series := run.series('update_cosine'):
    other = axes.twinx()
    color = 'tab:orange'
    other.plot(*np.array(series).T, color=color, alpha=.8)
    axes.plot([], [], color=color, label='cosine of updates (right)')
    other.tick_params(axis='y', colors=color)
  _finish(axes, 'client drift')


def _clients(axes, run):
  """Accuracies over clients, or else the numbers of their examples."""
  line = next((line for line in reversed(run.lines)
               if isinstance(line.get('clients'), dict)), None)
  table = line['clients'] if line else {}
  shown = {label: [value for value in table.get(name, ())
                   if read.is_number(value)]
           for name, label in _OF_CLIENTS.items()}
  shown = {label: values for label, values in shown.items() if values}
  if shown:
    axes.boxplot(list(shown.values()), tick_labels=list(shown), widths=.5,
                 showfliers=False)
    random = np.random.default_rng(0)
    for index, values in enumerate(shown.values(), 1):
      axes.plot(index + random.uniform(-.12, .12, len(values)), values, '.',
                color='tab:blue', alpha=.5)
    axes.set(title='accuracy of each client' + (
        f', round {line["round"]}' if line else ''))
    axes.grid(axis='y', alpha=.3)
  elif (sizes := run.client_sizes) is not None and len(sizes):
    axes.hist(sizes, bins=min(20, len(sizes)))
    axes.set(title='training examples of clients', xlabel='examples',
             ylabel='clients')
  else:
    axes.set(title='clients')
    _note(axes, 'not recorded')
