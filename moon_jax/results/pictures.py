"""Pictures of a run: partition, simulated time, clusters, graph of clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moon_jax.config import parts
from moon_jax.results import stats
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
_MAX_EDGES = 5000  # more lines would be one area


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
  topology = run.config.topology
  if any('clients_of_models' in line for line in run.lines):
    pictures.append(models_picture(run.lines, run.config.num_clients))
  if topology.name == 'gossip':
    pictures += _graph_pictures(run, topology)
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


def models_picture(lines: Sequence[dict[str, Any]], num_clients: int
                   ) -> Picture:
  """Returns the picture of which model each client trains in which round.

  Args:
    lines: those of metrics.jsonl, with clients_of_models.
    num_clients: all clients; rounds without a client are white.
  """
  model_CT = np.full((num_clients, len(lines)), np.nan)
  for t, line in enumerate(lines):
    for model, members in enumerate(line.get('clients_of_models', ())):
      model_CT[members, t] = model
  num_models = int(np.nanmax(model_CT, initial=0)) + 1

  def draw(figure):
    from matplotlib import cm, ticker

    axes = figure.subplots()
    rounds = [line['round'] for line in lines]
    image = axes.imshow(
        model_CT, aspect='auto', interpolation='nearest', vmin=-.5,
        vmax=num_models - .5, cmap=cm.viridis.resampled(num_models),
        extent=(rounds[0] - .5, rounds[-1] + .5, num_clients - .5, -.5))
    axes.set(xlabel='round', ylabel='client')
    axes.grid(visible=False)
    for axis in axes.xaxis, axes.yaxis:
      axis.set_major_locator(ticker.MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label='model',
                    ticks=ticker.MaxNLocator(integer=True))

  return Picture('models', draw, (8, np.clip(2 + .12 * num_clients, 3, 9)),
                 'The model that each client trains in each round.')


def _graph_pictures(run, topology):
  """Returns the picture of a built-in graph, in a list."""
  graph = parts.parse('graph', dict(topology.arguments).get('graph', 'ring'))
  if graph.is_own or parts.files('graph', graph):
    return []  # it may have changed since
  from moon_jax.topologies import graphs  # imports jax

  num_clients = run.config.num_clients
  edges = graphs.edges_of(graph, num_clients, run.config.split_seed())
  columns = (run.line_of_clients() or {}).get('clients', {})
  metric = next((name for name in stats.OF_CLIENTS if name in columns), '')
  value_C = np.full(num_clients, np.nan)
  if metric:
    value_C[columns['client']] = 100 * np.array(columns[metric], float)
  return [graph_picture(edges, value_C, stats.label(metric))] if (
      len(edges) <= _MAX_EDGES) else []


def graph_picture(edges: np.ndarray, value_C: np.ndarray,
                  label: str) -> Picture:
  """Returns the picture of a graph with its nodes on a circle.

  Args:
    edges: int [E, 2].
    value_C: a metric of each node's model, by which it is coloured; NaN for
      nodes without.
    label: of the metric.
  """
  angle_C = 2 * np.pi * np.arange(len(value_C)) / len(value_C)
  at_C2 = np.stack([np.sin(angle_C), np.cos(angle_C)], 1)

  def draw(figure):
    from matplotlib.collections import LineCollection

    axes = figure.subplots()
    axes.add_collection(LineCollection(
        at_C2[edges], color='#999999', linewidth=.8, zorder=1))
    size = np.clip(12000 / len(value_C), 4, 350)
    is_known_C = np.isfinite(value_C)
    axes.scatter(*at_C2[~is_known_C].T, size, 'white', edgecolors='#333333')
    if is_known_C.any():
      points = axes.scatter(*at_C2[is_known_C].T, size, value_C[is_known_C],
                            edgecolors='#333333', linewidth=.5)
      figure.colorbar(points, ax=axes, label=label, shrink=.7)
    for client, (x, y) in enumerate(at_C2 * 1.13):
      if len(value_C) <= _MAX_LABELS:
        axes.text(x, y, client, ha='center', va='center')
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect='equal')
    axes.set_axis_off()

  return Picture('graph', draw, (7, 6), 'The graph of clients. The colour is '
                 "the held-out accuracy of each client's model; white clients "
                 'were not evaluated.')
