"""Pictures of a run: the partition as a heat map, and simulated time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moon_jax.results.figures import Picture
from moon_jax.results.read import Run
from moon_jax.view.text import short_names

_MAX_LABELS = 30  # more tick labels would overlap
_MAX_NUMBERED = 20  # more rows or columns have no room for numbers
_MAX_NAMED = 400  # clients with names across the axis
_NAME_POINTS = 7
_NAME_INCHES = .11  # of a name of 7 points, upright
_MAX_COLUMNS = 1500  # more would be narrower than a pixel
_MAX_SHAPES = 60  # rows or columns of shapes, which make SVG files large
_NUM_LEVELS = 12  # colours
_MAX_CLIENTS = 40  # rows of simulated time
_MAX_STEPS = 30  # whose ends have room for lines


def run_pictures(run: Run) -> list[Picture]:
  """Returns the pictures for which a run has data."""
  pictures = []
  partition, timeline = run.arrays('partition.npz'), run.arrays('timeline.npz')
  names = partition['names'].tolist() if 'names' in partition else None
  if 'counts' in partition:
    pictures.append(partition_picture(
        partition['counts'], partition['class_names'].tolist(), names))
  if timeline:
    pictures.append(timeline_picture(timeline, names))
  return pictures


def partition_picture(counts_CK: np.ndarray, class_names: Sequence[str] = (),
                      client_names: Sequence[str] | None = None) -> Picture:
  """Returns the heat map of examples, with clients on the x axis.

  Args:
    counts_CK: examples of each class at each client.
    class_names: of the K classes.
    client_names: of the C clients; those without names are numbered from 0. If
      there are too many clients for a column each, a column is the mean of
      consecutive ones, and the axis says so.
  """
  num_clients, num_classes = counts_CK.shape
  names = short_names(client_names or ()) if num_clients <= _MAX_NAMED else []
  column = .25 if names and num_clients > _MAX_NUMBERED else .55  # inches
  width = np.clip(2.5 + column * num_clients, 5, 16)
  if names:
    width = max(width, 2.5 + _NAME_INCHES * num_clients)

  def draw(figure):
    heat_map(figure, counts_CK, class_names, _MAX_COLUMNS)
    axes = figure.axes[0]
    if names:
      is_wide = num_clients <= _MAX_NUMBERED
      axes.set_xticks(
          range(num_clients), names,
          rotation=45 if is_wide else 90, ha='right' if is_wide else 'center',
          rotation_mode='anchor' if is_wide else 'default',
          fontsize=None if is_wide else _NAME_POINTS)
    if max(num_clients, num_classes) <= _MAX_NUMBERED:
      if not names:
        axes.set_xticks(range(num_clients))
      for (client, k), count in np.ndenumerate(counts_CK):
        axes.text(
            client, k, count, ha='center', va='center', fontsize=8,
            color='white' if count > counts_CK.max() / 2 else 'black')

  return Picture('partition', draw, (width, np.clip(
      1.5 + .4 * num_classes, 4, 12) + .8 * bool(names)),
                 'Training examples of each client and class.')


def heat_map(figure: Any, counts_CK: np.ndarray, class_names: Sequence[str],
             max_groups: int = _MAX_SHAPES) -> None:
  """Draws a heat map without numbers and names into an empty figure.

  Cells without examples are white; the others have one of 12 colours, the
  darker the more examples. More than `max_groups` clients or classes are drawn
  as means of groups. Up to 60 are shapes, more an image.
  """
  from matplotlib import cm, colors, ticker

  counts_CK, group = _grouped(counts_CK, max_groups)
  counts_KC, class_group = _grouped(counts_CK.T, max_groups)
  axes = figure.subplots()
  num_rows, num_columns = counts_KC.shape
  mesh = axes.pcolormesh(
      np.arange(num_columns + 1) - .5, np.arange(num_rows + 1) - .5,
      np.ma.masked_equal(counts_KC, 0), vmin=0, vmax=max(counts_KC.max(), 1),
      edgecolors='face', rasterized=num_columns > _MAX_NAMED,
      cmap=colors.ListedColormap(cm.Blues(np.linspace(.15, 1, _NUM_LEVELS))))
  axes.set(xlabel=_label('client', group), ylabel=_label('class', class_group))
  axes.invert_yaxis()
  axes.grid(visible=False)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  if num_rows <= _MAX_LABELS:
    axes.set_yticks(range(num_rows), class_names if (
        len(class_names) == num_rows) else ['all'])  # labels are no classes
  figure.colorbar(mesh, ax=axes, label='training examples')


def _label(name, group):
  return name if group == 1 else f'group of {group:,} ({name})'


def _grouped(counts_CK, max_groups):
  """Returns means over groups of consecutive rows, and the group's size."""
  num_clients = len(counts_CK)
  group = -(-num_clients // max_groups)
  starts = np.arange(0, num_clients, group)
  sizes = np.diff(starts, append=num_clients)
  return np.add.reduceat(counts_CK, starts) / sizes[:, None], group


def timeline_picture(timeline: dict[str, np.ndarray],
                     client_names: Sequence[str] | None = None) -> Picture:
  """Returns the picture of who trains when, and how stale updates are.

  It has the first rounds, or server steps. A bar lasts from the start of a
  client, whose update counts, to its arrival, and is darker the more server
  steps are between them. Vertical lines are the ends of rounds, or server
  steps. Asynchronous timelines have a histogram of all staleness below.

  Args:
    timeline: `moon_jax.runs.directory.timeline_npz`.
    client_names: of all clients; those without names are numbered from 0.
  """
  import pandas as pd

  staleness = timeline.get('staleness')
  seconds, updates = timeline['seconds'], pd.DataFrame({
      name: timeline[name] for name in ('round', 'client', 'begin', 'end')})
  updates['staleness'] = 0 if staleness is None else staleness
  # Clients by the round in which they are first: rounds until there are many.
  first = updates.groupby('client', sort=False)['round'].min()
  shown = min(_MAX_STEPS, len(seconds))
  if len(first) >= _MAX_CLIENTS:
    shown = min(shown, first.iloc[_MAX_CLIENTS - 1] + 1)
  clients = sorted(first.index[first < shown][:_MAX_CLIENTS])
  last = seconds[shown - 1]
  bars = updates[updates.client.isin(clients) & (updates.begin < last)]
  heights = [1.2 + .14 * len(clients), *[2] * (staleness is not None)]

  def draw(figure):
    from matplotlib import cm

    axes, *below = np.atleast_1d(
        figure.subplots(len(heights), height_ratios=heights))
    axes.barh(
        np.searchsorted(clients, bars.client), bars.end - bars.begin,
        left=bars.begin, height=.7, edgecolor='white', linewidth=.5,
        color=cm.Blues(.4 + .6 * bars.staleness / max(bars.staleness.max(), 1)))
    for time in seconds[:shown]:
      axes.axvline(time, color='#D55E00', linewidth=.6)
    word = 'rounds' if staleness is None else (
        'server steps (darker: more stale)')
    axes.set(xlabel='simulated time (s)', ylabel='client', xlim=(0, last),
             title=f'{len(clients)} clients in '
             + f'the first {shown:,} of ' * bool(shown < len(seconds))
             + f'{len(seconds):,} {word}')
    axes.set_yticks(
        range(len(clients)), clients if client_names is None else
        short_names([client_names[client] for client in clients]),
        fontsize=_NAME_POINTS)
    axes.invert_yaxis()
    axes.grid(visible=False)
    if staleness is not None:
      counts = np.bincount(staleness)
      below[0].bar(range(len(counts)), counts, color='#0072B2')
      below[0].set(xlabel='staleness (server steps)', ylabel='updates',
                   title='All updates')

  return Picture('timeline', draw, (9, 1.3 + sum(heights)),
                 'A bar lasts from the start of a client to the arrival of its '
                 'update. Vertical lines are the ends of rounds, or server '
                 'steps.')
