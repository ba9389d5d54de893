"""Figures: SVG text for pages, and files of `show`.

Figures of pages are 3.8 inches wide with texts of 10 points, which is legible
on a phone (358 CSS pixels) and three in a row on a wide screen. Each has one
panel, whose lines are labelled at their ends. Files have the size that the user
gives. All texts of a figure have one size: 10 points, or 8 if the figure is
narrower than one of a page, such as a column of a paper.

A method has the same colour in all figures (the most used ones have those of
Okabe and Ito, Color Universal Design, https://jfly.uni-koeln.de/color/), with a
contrast of 3 or more to white. Lines of one method are shades of it, in their
order. Six lines differ in their dashes; of more lines, those whose colours are
close do.
"""

from collections.abc import Callable, Sequence
import colorsys
import io
import itertools
import pathlib
import re
import textwrap
from typing import Any, NamedTuple, TYPE_CHECKING
import warnings

import numpy as np
from scipy import optimize

from moon_jax.config import methods
from moon_jax.config.kinds import METHODS
from moon_jax.errors import UserError
from moon_jax.results import read, stats
from moon_jax.results.read import Run
from moon_jax.view.text import label_lines, short_names

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
_POINTS, _POINTS_OF_COLUMN = 10, 8  # of texts; papers want 7 at least
_LABEL_WIDTH = 16  # characters of a line of a label
_MOST_LABEL_WIDTH = 22  # of a line that is one name with its number
_LINE_HEIGHT = .017  # inches per point
_AROUND = .075  # inches per point that are above and below the axes
_CHARACTER = .55  # width of a character, in its height
_LEAST = .6  # inches of axes that still show something
_FILE_WIDTH = 9.  # inches, where the user gives no size
_RUN_SIZE = 10., 7.5  # inches of the panels of a run
_DPI = 200
_STYLE = {
    'font.family': 'sans-serif', 'axes.titlesize': 'medium',
    'axes.titleweight': 'bold', 'figure.titlesize': 'medium',
    'pdf.fonttype': 42,  # TrueType: publishers refuse type 3
    'text.parse_math': False,  # names may have a $
    'axes.grid': True, 'grid.color': '#dddddd',
    'grid.linewidth': .6, 'axes.spines.top': False, 'axes.spines.right': False,
    'axes.axisbelow': True, 'legend.frameon': False,
    'legend.handlelength': 2.6, 'svg.fonttype': 'none'}

_RGB_TO_LMS = np.array([[.4122214708, .5363325363, .0514459929],
                        [.2119034982, .6806995451, .1073969566],
                        [.0883024619, .2817188376, .6299787005]])
_LMS_TO_LAB = np.array([[.2104542553, .7936177850, -.0040720468],
                        [1.9779984951, -2.4285922050, .4505937099],
                        [.0259040371, .7827717662, -.8086757660]])

_MOST_MARKED = 40  # points of a line with markers

# Metrics of the panels of a run, as regular expressions.
_PANELS = {'accuracy': 'accuracy$', 'loss': 'loss$|entropy$',
           'client drift': '^drift$|^update_cosine$|^proximal_term$'}
_MODELS = {
    '': 'global model', 'global': 'global model', 'local': 'local models',
    'personal': 'personal models', 'adapted': 'adapted models',
    'new': 'new clients before training',
    'new_adapted': 'new clients after training'}
_DATA = {'test': 'test data', 'validation': 'validation data',
         'own': "clients' own examples",
         'heldout': 'held-out examples'}
_OF_MODEL = re.compile(
    rf'(?:({"|".join(filter(None, _MODELS))})_)?({"|".join(_DATA)})_'
    '(?:accuracy|loss)')
_PLAIN = {'cross_entropy': 'cross-entropy',
          'drift': 'distance to the global model',
          'update_cosine': 'cosine of two updates'}


class Line(NamedTuple):
  """The results of a method in a panel of `curves`."""

  label: str
  method: str  # a name of an algorithm
  curves: 'pd.DataFrame'  # by round and run, NaN where not evaluated
  published: float | None = None


class Picture(NamedTuple):
  """A figure with a file of its own."""

  name: str  # of its files, without ending
  draw: Callable[[Any], None]  # into an empty figure of matplotlib
  size: tuple[float, float]  # inches
  caption: str = ''
  is_metric: bool = False  # whether users choose its size


def empty(width: float, height: float) -> Any:
  """Returns an empty figure, in inches, that needs no display."""
  # pyplot would look for a display and keep each figure in memory.
  from matplotlib.figure import Figure

  return Figure(figsize=(width, height), layout='constrained')


def svg(draw: Callable[[Any], None], height: float, name: str,
        width: float = _WIDTH) -> str:
  """Returns the SVG text of a figure, in inches, that `draw` fills.

  The text depends on the arguments only, not on the date or the settings of
  the user; ids within it follow from the name. Texts remain texts, so they are
  set in a font of the reader, which may be narrower or wider: align texts of
  several lines left.
  """
  with _style(width, name):
    figure = empty(width, height)
    draw(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None})
  text = buffer.getvalue()
  return text[text.index('<svg'):]


def _style(width, name):
  """Returns the style of a figure, independent of the settings of the user."""
  from matplotlib import style

  return style.context(['default', _STYLE | {
      'font.size': _points(width), 'svg.hashsalt': name}])


def _points(width):
  """Returns the size of all texts of a figure."""
  return _POINTS if width >= _WIDTH else _POINTS_OF_COLUMN


def curves(lines: Sequence[Line], ylabel: str, name: str) -> str:
  """Draws means over seeds by round, with bands from minimum to maximum.

  Rounds that are not evaluated for all seeds are left out. A single seed has no
  band. Published values are thin dashed lines in the colour of the method.
  """
  return svg(lambda figure: _draw_curves(figure, lines, ylabel),
             max(2.7, _height(lines)), name)


def is_cut(values: 'pd.DataFrame') -> bool:
  """Returns whether `curves` leaves out rounds that end only some runs."""
  known = values.dropna(how='all')
  return len(known) > 0 and bool(known.iloc[-1].isna().any())


def _height(lines):
  """Returns the inches that the labels of lines need, with what is around."""
  return _POINTS * (_AROUND + sum(map(_label_height, lines)))


def _filled(label):
  return '\n'.join(label_lines(label, _LABEL_WIDTH, _MOST_LABEL_WIDTH))


def _label_height(line):
  """Returns the inches that a label needs, per point of its text."""
  label = _filled(line.label)
  return _LINE_HEIGHT * (1.2 + label.count('\n'))


def _draw_curves(figure, lines, ylabel, xlabel='round'):
  from matplotlib.ticker import EngFormatter, MaxNLocator

  ax = figure.subplots()
  ends = []
  points = _points(figure.get_figwidth())
  colors = shades([line.method for line in lines])
  for line, color, dashes in zip(lines, colors, _dashes(colors)):
    values = line.curves.dropna()  # rounds that all runs have evaluated
    means = values.mean(axis=1)
    ax.plot(means, color=color, linewidth=.16 * points, linestyle=dashes,
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
  if xlabel.startswith(('round', 'client')):
    _set_integer_ticks(ax)
  else:  # 200 MB; a factor of 1e8 would be written over the label
    ax.xaxis.set_major_formatter(EngFormatter(
        'B' * xlabel.startswith('bytes')))
    ax.xaxis.set_major_locator(MaxNLocator(
        int(np.clip(figure.get_figwidth(), 2, 7)), steps=[1, 2, 5, 10]))
  _label_ends(ax, sorted(ends, key=lambda end: end[0]))


def _label_ends(ax, ends):
  """Writes labels beside the axes, as near to their lines' ends as they fit."""
  from matplotlib.transforms import ScaledTranslation

  if not ends:
    return
  low, high = ax.get_ylim()
  width, height = ax.figure.get_size_inches()
  heights = np.array([_label_height(line) for _, _, line, _ in ends]) * (
      high - low) / max(height / _points(width) - _AROUND, .01)
  # The least squares of the distances to the ends, without overlaps.
  offsets = np.cumsum(heights) - heights / 2
  starts = optimize.isotonic_regression([end[0] for end in ends] - offsets).x
  places = offsets + np.clip(starts, low, high - heights.sum())
  left, right = ax.get_xlim()
  early = itertools.cycle(_MARKERS)
  beside = lambda points: ax.get_yaxis_transform() + ScaledTranslation(
      points / 72, 0, ax.figure.dpi_scale_trans)  # right of the axes
  for (y, x, line, color), place in zip(ends, places):
    leader: dict[str, Any] | None = {
        'arrowstyle': '-', 'color': color, 'linewidth': .6, 'relpos': (0, .5),
        'shrinkA': 1, 'shrinkB': 0}
    if right - x > _EARLY * (right - left):  # it would cross other lines
      leader, marker = None, next(early)
      for at, transform in ((x, y), ax.transData), ((1, place), beside(6)):
        ax.plot(*at, marker, color=color, transform=transform, clip_on=False)
    ax.annotate(
        _filled(line.label), (x, y), (1, place), va='center', color=color,
        textcoords=beside(14), arrowprops=leader)
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

  shown = []
  for i, method in enumerate(methods):
    before, total = methods[:i].count(method), methods.count(method)
    hue, light, saturation = colorsys.rgb_to_hls(
        *colors.to_rgb(color_of(method)))
    light *= 1 - .75 * before / max(total - 1, 1)
    shown.append(colors.to_hex(colorsys.hls_to_rgb(hue, light, saturation)))
  return shown


def _dashes(colors):
  """Returns a line style for each colour, different ones for near colours."""
  styles: list[Any] = []
  for color in colors:
    nearest = [min((distance(color, other) for other, used in zip(
        colors, styles) if used == style), default=1.) for style in _DASHES]
    far = [style for style, gap in zip(_DASHES, nearest) if gap >= _NEAR]
    styles.append(min(far, key=styles.count) if far else
                 _DASHES[int(np.argmax(nearest))])
  return styles


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


# --------------------------------------------------------------------- files


def curves_picture(name: str, lines: Sequence[Line], ylabel: str,
                   xlabel: str = 'round', caption: str = '') -> Picture:
  """Returns the picture of `curves`."""
  return Picture(
      name, lambda figure: _draw_curves(figure, lines, ylabel, xlabel),
      (_FILE_WIDTH, max(5., _height(lines))), caption, is_metric=True)


def run_picture(run: Run) -> Picture:
  """Returns the picture of the metrics of a run.

  The panels share one legend: a colour is the same model on the same data.

  Raises:
    UserError: if the run has no metrics yet.
  """
  if not run.lines:
    raise UserError('', f'{run.path} must have metrics to plot', 'none yet',
                    'Wait for its first round')
  return Picture('run', lambda figure: _draw_run(figure, run), _RUN_SIZE,
                 is_metric=True)


def _draw_run(figure, run):
  from matplotlib.ticker import PercentFormatter

  width, height = figure.get_size_inches()
  characters = int(width * 72 / _CHARACTER / _points(width))  # of a line
  figure.suptitle(textwrap.fill(_title_of(run), characters))
  rounds = read.rounds_frame([run]).droplevel('run')
  shape = (2, 2) if width > .8 * height else (4, 1)
  clients, where = _client_panel(  # names are upright
      run, int(60 * width / shape[1] / _points(width)))
  panels = {title: (rounds.filter(regex=names), 'round')
            for title, names in _PANELS.items()} | {
                'accuracy of each client': (clients, where)}
  plain = _names_of(run)
  names = dict.fromkeys(plain(name) for metrics, _ in panels.values()
                        for name in metrics if metrics[name].notna().any())
  colors = [color_of(method) for method in METHODS[:len(names)]]
  looks = dict(zip(names, zip(colors, _dashes(colors), _MARKERS * 9)))
  handles: dict[str, Any] = {}
  for axes, (title, (metrics, xlabel)) in zip(
      figure.subplots(*shape).flat, panels.items()):
    are_named = metrics is clients and metrics.index.dtype == object
    for name, column in metrics.items():
      y = column if are_named else column.dropna()
      if column.notna().any():
        color, dashes, marker = looks[plain(name)]
        handle, = axes.plot(
            y, color=color, linestyle='' if are_named else dashes,
            marker=marker if len(y) <= _MOST_MARKED else '', markersize=4,
            label=plain(name))
        handles.setdefault(plain(name), handle)
    if not axes.lines:
      axes.set_axis_off()
      axes.set_title(f'{title}: not recorded')
      continue
    axes.set(title=title, xlabel=xlabel)
    if are_named:
      axes.tick_params('x', rotation=90)
    else:
      _set_integer_ticks(axes)
    if 'accuracy' in title:
      axes.yaxis.set_major_formatter(PercentFormatter(1))
    elif title == 'loss' and 'test_accuracy' in rounds:  # a cross-entropy
      axes.set_ylabel('nats')
  if handles:
    figure.legend(handles=[*handles.values()], loc='outside lower center',
                  ncols=max(1, characters // (max(map(len, handles)) + 8)))


def _title_of(run):
  """Returns the method with its arguments, the data set, seed and state."""
  algorithm, config = run.config.algorithm, run.config
  return ', '.join([
      methods.title(algorithm.name),
      *(f'{argument} {value}' for argument, value in algorithm.arguments),
      *([] if config.topology.name == 'star' else [str(config.topology)]),
      config.dataset, f'seed {config.seed}',
      *([] if run.state.kind == 'finished' else [run.state.kind])])


def _names_of(run):
  """Returns `plain`, for a run that may have no global model."""
  has_one = run.config.topology.name == 'star'
  if has_one and run.config.algorithm.name != 'solo':
    return plain
  models = 'mean over models' if not has_one else "mean over clients' models"
  return lambda metric: plain(metric).replace('global model', models) if (
      metric.startswith(('test_', 'validation_'))) else plain(metric)


def _client_panel(run, most):
  """Returns the accuracies of clients, and the label of their axis.

  At most `most` clients are rows with their names, or numbers, the lowest
  first. Of more clients each column is sorted by itself.
  """
  import pandas as pd

  line = run.line_of_clients() or {'round': 0, 'clients': {}}
  columns = line['clients']
  made = pd.DataFrame(columns).filter(regex=_PANELS['accuracy']).astype(float)
  where = f'clients by accuracy, round {line["round"]}'
  if not len(made) or len(made) > most:
    return made.apply(np.sort), where  # NaN is last
  names = run.arrays('partition.npz').get('names', ())
  numbers = columns['client']
  known = columns.get('name') or [
      names[client] if client < len(names) else client for client in numbers]
  made.index = pd.Index(short_names(known, numbers), dtype=object)
  first = [name for name in stats.OF_CLIENTS if name in made] or [*made]
  return made.sort_values(first[:1], kind='stable'), where


def plain(metric: str) -> str:
  """Returns whose accuracy or loss on which data a metric is, in plain words.

  Others have their names in words.
  """
  if match := _OF_MODEL.fullmatch(metric):
    return f'{_MODELS[match[1] or ""]}, {_DATA[match[2]]}'
  return _PLAIN.get(metric, stats.words(metric))


def file_name(metric: str) -> str:
  """Returns the name of a file of a metric, whose name may have any sign."""
  return re.sub(r'[^\w.]+|_', '-', metric).strip('-.') or 'metric'


def save(picture: Picture, directory: pathlib.Path, ending: str,
         size: tuple[float, float] | None = None) -> pathlib.Path:
  """Draws a picture to DIRECTORY/NAME.ENDING, which it returns.

  Args:
    picture: what to draw.
    directory: of the file.
    ending: png, pdf or svg.
    size: inches of a picture of metrics, if users have chosen them.

  Raises:
    UserError: if the size has no room for the labels, or the file cannot be
      written.
  """
  size = size if picture.is_metric else None
  width, height = size or picture.size
  path = directory / f'{picture.name}.{ending}'
  with _style(width, picture.name):
    made = empty(width, height)
    picture.draw(made)
    if size and not _has_room(made):
      raise UserError(
          'size', 'must have room for the axes and their labels, in texts of '
          f'{_points(width)} points', f'{width:g}x{height:g}', 'A larger one '
          f'is {picture.size[0]:g}x{picture.size[1]:.3g}')
    try:
      made.savefig(path, dpi=_DPI)
      return path
    except (OSError, ValueError) as error:
      raise UserError('out', 'must be a directory that can be written',
                      f'{path}: {error}') from error


def _has_room(figure):
  """Returns whether axes are large enough and texts are in the figure."""
  from matplotlib.text import Text

  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # of axes without room
    figure.draw_without_rendering()
  is_inside = lambda box: (
      min(box.x0, box.y0) >= -1 and box.x1 <= figure.bbox.x1 + 1
      and box.y1 <= figure.bbox.y1 + 1)
  return all(
      min(ax.get_window_extent().size) >= _LEAST * figure.dpi
      and is_inside(ax.get_tightbbox())
      and all(is_inside(Text.get_window_extent(text)) for text in ax.texts)
      for ax in figure.axes) and all(
          is_inside(legend.get_window_extent()) for legend in figure.legends)
