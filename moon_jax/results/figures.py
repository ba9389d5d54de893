"""Figures: SVG text for pages, and files of `show`.

Figures of pages are 3.8 inches wide with texts of 10 points, which is legible
on a phone (358 CSS pixels) and three in a row on a wide screen. Each has one
panel, whose lines are labelled at their ends.

A method has the same colour in all figures (the most used ones have those of
Okabe and Ito, Color Universal Design, https://jfly.uni-koeln.de/color/), with a
contrast of 3 or more to white. Lines of one method are shades of it, in their
order, and lines whose colours are close differ in their dashes.
"""

from collections.abc import Callable, Sequence
import colorsys
import io
import itertools
import pathlib
import re
import textwrap
from typing import Any, NamedTuple, TYPE_CHECKING

import numpy as np
from scipy import optimize

from moon_jax.config.kinds import METHODS
from moon_jax.errors import UserError
from moon_jax.results import rounds_frame
from moon_jax.results.read import Run

if TYPE_CHECKING:
  import pandas as pd

COLORS = {'fedavg': '#0072B2', 'moon': '#D55E00', 'fedprox': '#009E73',
          'scaffold': '#CC79A7', 'solo': '#595959', 'fednova': '#6A51A3',
          'centralized': '#000000'}
OTHER_COLOR = '#7A4B12'  # of methods that are not built in
_GOLDEN = .618  # of the circle of hues, between two built-in methods

_MARKERS = 'os^DvPX<>*'
_PUBLISHED_DASHES = (0, (5, 3))
_DASHES = ('-', (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2)),
           (0, (9, 2)), (0, (4, 1, 1, 1, 1, 1)))
_NEAR = .22  # distance in Oklab of colours that thin lines hardly tell apart
_EARLY = .1  # of the x axis, that a line may end before it to have a leader
_WIDTH = 3.8  # inches; on a phone 10 points are then 13 CSS pixels
_LABEL_WIDTH = 16  # characters of a line of a label
_LINE_HEIGHT = .17  # inches
_AROUND = .75  # inches of a figure that are above and below its axes
_STYLE = {
    'font.family': 'sans-serif', 'font.size': 10, 'axes.titlesize': 11,
    'axes.titleweight': 'bold', 'axes.grid': True, 'grid.color': '#dddddd',
    'grid.linewidth': .6, 'axes.spines.top': False, 'axes.spines.right': False,
    'axes.axisbelow': True, 'legend.frameon': False,
    'legend.handlelength': 2.6, 'svg.fonttype': 'none'}

_RGB_TO_LMS = np.array([[.4122214708, .5363325363, .0514459929],
                        [.2119034982, .6806995451, .1073969566],
                        [.0883024619, .2817188376, .6299787005]])
_LMS_TO_LAB = np.array([[.2104542553, .7936177850, -.0040720468],
                        [1.9779984951, -2.4285922050, .4505937099],
                        [.0259040371, .7827717662, -.8086757660]])

# Metrics of the panels of a run, as regular expressions.
_PANELS = {'accuracy': 'accuracy$', 'loss': 'loss$|entropy$|^proximal_term$',
           'client drift': '^drift$|^update_cosine$'}


class Line(NamedTuple):
  """The results of a method in a panel of `curves`."""

  label: str
  method: str  # a name of an algorithm
  curves: 'pd.DataFrame'  # by round and run, NaN where not evaluated
  published: float | None = None


def empty(width: float, height: float) -> Any:
  """Returns an empty figure, in inches, that needs no display."""
  # pyplot would look for a display and keep each figure in memory.
  from matplotlib.figure import Figure

  return Figure(figsize=(width, height), layout='constrained')


def svg(draw: Callable[[Any], None], height: float, name: str) -> str:
  """Returns the SVG text of a figure that `draw` fills.

  The text depends on the arguments only, not on the date or the settings of
  the user; ids within it follow from the name. Texts remain texts, so they are
  set in a font of the reader, which may be narrower or wider: align texts of
  several lines left.
  """
  from matplotlib import style

  with style.context(['default', _STYLE | {'svg.hashsalt': name}]):
    figure = empty(_WIDTH, height)
    draw(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None})
  text = buffer.getvalue()
  return text[text.index('<svg'):]


def curves(lines: Sequence[Line], ylabel: str, name: str) -> str:
  """Draws means over seeds by round, with bands from minimum to maximum.

  Rounds that are not evaluated for all seeds are left out. A single seed has no
  band. Published values are thin dashed lines in the colour of the method.
  """
  return svg(lambda figure: _draw_curves(figure, lines, ylabel),
             max(2.7, _AROUND + sum(map(_label_height, lines))), name)


def _filled(label):
  """Returns a label in short lines, which end between words or parts of names.

  A word stays whole, and so does a setting with its number, such as beta=0.5.
  """
  parts = re.sub(r'[_=/,:.-](?=[^\W\d])', r'\g<0>\v', label)
  return textwrap.fill(
      parts, _LABEL_WIDTH, break_long_words=False, break_on_hyphens=False,
      replace_whitespace=False).replace('\v', '')


def _label_height(line):
  """Returns the inches that a label needs."""
  label = _filled(line.label)
  return _LINE_HEIGHT * (1.2 + label.count('\n'))


def _draw_curves(figure, lines, ylabel, xlabel='round'):
  ax = figure.subplots()
  ends = []
  colors = shades([line.method for line in lines])
  for line, color, dashes in zip(lines, colors, _dashes(colors)):
    values = line.curves.dropna()  # rounds that all runs have evaluated
    means = values.mean(axis=1)
    ax.plot(means, color=color, linewidth=1.6, linestyle=dashes,
            marker='o' if len(means) == 1 else '')
    if values.shape[1] > 1:
      ax.fill_between(values.index, values.min(axis=1), values.max(axis=1),
                      linewidth=0, color=color, alpha=.2)
    if line.published is not None:
      ax.axhline(line.published, color=color, linewidth=1,
                 linestyle=_PUBLISHED_DASHES)
    if len(means):
      ends.append((means.iloc[-1], means.index[-1], line, color))
  ax.set(xlabel=xlabel, ylabel=ylabel)
  if xlabel == 'round':
    _set_integer_ticks(ax)
  _label_ends(ax, sorted(ends, key=lambda end: end[0]))


def _label_ends(ax, ends):
  """Writes labels beside the axes, as near to their lines' ends as they fit."""
  if not ends:
    return
  low, high = ax.get_ylim()
  heights = np.array([_label_height(line) for _, _, line, _ in ends]) * (
      high - low) / (ax.figure.get_figheight() - _AROUND)
  # The least squares of the distances to the ends, without overlaps.
  offsets = np.cumsum(heights) - heights / 2
  starts = optimize.isotonic_regression([end[0] for end in ends] - offsets).x
  places = offsets + np.clip(starts, low, high - heights.sum())
  left, right = ax.get_xlim()
  early = itertools.cycle(_MARKERS)
  for (y, x, line, color), place in zip(ends, places):
    leader: dict[str, Any] | None = {
        'arrowstyle': '-', 'color': color, 'linewidth': .6, 'relpos': (0, .5),
        'shrinkA': 1, 'shrinkB': 0}
    if right - x > _EARLY * (right - left):  # it would cross other lines
      leader, marker = None, next(early)
      for at, transform in ((x, y), ax.transData), (
          (1.035, place), ax.get_yaxis_transform()):
        ax.plot(*at, marker, color=color, transform=transform, clip_on=False)
    ax.annotate(
        _filled(line.label), (x, y), (1.06, place), va='center', color=color,
        textcoords=('axes fraction', 'data'), arrowprops=leader)
  ax.set_xlim(left, right)
  ax.set_ylim(low, high)


def _set_integer_ticks(axes):
  from matplotlib.ticker import MaxNLocator

  axes.xaxis.set_major_locator(MaxNLocator(
      7, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def color_of(method: str) -> str:
  """Returns the colour of a method."""
  from matplotlib import colors

  if method in COLORS or method not in METHODS:
    return COLORS.get(method, OTHER_COLOR)
  hue = METHODS.index(method) * _GOLDEN % 1
  return colors.to_hex(colorsys.hls_to_rgb(hue, .3, .85))


def shades(methods: Sequence[str]) -> list[str]:
  """Returns a colour for each method; of several lines from light to dark."""
  from matplotlib import colors

  found = []
  for i, method in enumerate(methods):
    before, total = methods[:i].count(method), methods.count(method)
    hue, light, saturation = colorsys.rgb_to_hls(
        *colors.to_rgb(color_of(method)))
    light *= 1 - .75 * before / max(total - 1, 1)
    found.append(colors.to_hex(colorsys.hls_to_rgb(hue, light, saturation)))
  return found


def _dashes(colors):
  """Returns a line style for each colour; colours that are near have others."""
  found: list[Any] = []
  for color in colors:
    nearest = [min((distance(color, other) for other, used in zip(
        colors, found) if used == style), default=1.) for style in _DASHES]
    far = [style for style, gap in zip(_DASHES, nearest) if gap >= _NEAR]
    found.append(far[0] if far else _DASHES[int(np.argmax(nearest))])
  return found


def distance(color: str, other: str) -> float:
  """Returns how different two colours look; black and white differ by 1.

  It is the distance in Oklab: B. Ottosson, A perceptual color space for image
  processing, 2020, https://bottosson.github.io/posts/oklab/.
  """
  from matplotlib import colors

  def oklab(color):
    rgb = np.array(colors.to_rgb(color))
    linear = np.where(rgb <= .04045, rgb / 12.92, ((rgb + .055) / 1.055)**2.4)
    return _LMS_TO_LAB @ np.cbrt(_RGB_TO_LMS @ linear)

  return float(np.linalg.norm(oklab(color) - oklab(other)))


def scatter(panels: Sequence[tuple[str, np.ndarray, Sequence[str]]], name: str
            ) -> str:
  """Draws points by class, for embeddings such as t-SNE, which have no unit.

  Panels are (title, points [N, 2], labels [N]). A class, of at most 10, has the
  same colour and marker in all panels.
  """
  classes = sorted({c for _, _, labels in panels for c in labels})

  def draw(figure):
    axes = np.atleast_1d(figure.subplots(len(panels)))
    for ax, (title, points_N2, labels) in zip(axes, panels):
      for c, marker in zip(classes, _MARKERS):
        ax.plot(*points_N2[np.asarray(labels) == c].T, marker, label=c,
                markersize=5, markeredgecolor='#333333', markeredgewidth=.4)
      ax.set(xticks=[], yticks=[])
      ax.set_title(textwrap.fill(title, 34), loc='left')
      ax.set_aspect('equal', 'datalim')
      ax.spines[:].set_visible(True)
    figure.legend(handles=axes[0].lines, loc='outside lower center', ncols=2)

  return svg(draw, 3.6 * len(panels) + .12 * len(classes) + .2, name)


# ---------------------------------------------------------------- PNG files


def save_curves(lines: Sequence[Line], ylabel: str, path: pathlib.Path,
                xlabel: str = 'round') -> pathlib.Path:
  """Draws `curves` to a file; returns its path, whose ending may be added."""
  made = empty(9, max(5., _AROUND + sum(map(_label_height, lines))))
  _draw_curves(made, lines, ylabel, xlabel)
  return _save(made, path)


def draw(run: Run, path: pathlib.Path) -> pathlib.Path:
  """Draws a run to a file; returns its path, whose ending may be added.

  Raises:
    UserError: if the run has no metrics yet, or the file cannot be written.
  """
  if not run.lines:
    raise UserError('', f'{run.path} must have metrics to plot', 'none yet',
                    'Wait for its first round')
  from matplotlib.ticker import PercentFormatter
  import pandas as pd

  rounds, config = rounds_frame([run]).droplevel('run'), run.config
  line = run.line_of_clients() or {'round': 0, 'clients': {}}
  clients = pd.DataFrame(line['clients']).filter(regex=_PANELS['accuracy'])
  clients = clients.astype(float).apply(np.sort)  # NaN is last
  made = empty(10, 7)
  made.suptitle(f'{config.algorithm}, {config.dataset}, seed {config.seed}: '
                f'{run.path.name} ({run.state.kind})')
  panels = {title: (rounds.filter(regex=names), 'round')
            for title, names in _PANELS.items()} | {
                'accuracy of each client': (
                    clients, f'clients by accuracy, round {line["round"]}')}
  for axes, (title, (metrics, xlabel)) in zip(
      made.subplots(2, 2).flat, panels.items()):
    for name, column in metrics.items():
      y = column.dropna()
      axes.plot(y, label=name, marker='.' if len(y) < 30 else '')
    axes.set(title=title if axes.lines else f'{title}: not recorded',
             xlabel=xlabel)
    _set_integer_ticks(axes)
    axes.grid(alpha=.3)
    if 'accuracy' in title:
      axes.yaxis.set_major_formatter(PercentFormatter(1))
    if axes.lines:
      axes.legend(fontsize=8)
  return _save(made, path)


def _save(made, path):
  path = path if path.suffix else path.with_name(f'{path.name}.png')
  try:
    made.savefig(path, dpi=120)
    return path
  except (OSError, ValueError) as error:
    raise UserError('out', 'must be a directory that can be written',
                    f'{path}: {error}') from error
