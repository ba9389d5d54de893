"""Draws simulated time: who trains when, and how stale updates are."""

from collections.abc import Sequence
import itertools
import pathlib

import numpy as np

from moon_jax.data.clock import Timeline
from moon_jax.results.heatmap import MAX_NAME, VECTOR

_MAX_CLIENTS = 40  # rows of the picture
_MAX_STEPS = 30  # whose ends have room for lines


def draw(timeline: Timeline, path: pathlib.Path,
         client_names: Sequence[str] | None = None) -> None:
  """Draws the beginning of a timeline to a file.

  A bar lasts from the start of a client, whose update counts, to its arrival,
  and is darker the more server steps are between them. Vertical lines are the
  ends of rounds, or server steps. Asynchronous timelines have a histogram of
  all staleness below.

  Args:
    timeline: of rounds or server steps; it must have spans.
    path: of the file; its ending is the format: png, pdf or svg.
    client_names: of all clients; those without names are numbered from 0.
  """
  from matplotlib import cm, rc_context
  from matplotlib.figure import Figure

  shown, row = _shown(timeline)
  last = timeline.seconds[shown - 1]
  updates = [
      (row[client], *span, tau) for cohort, spans, taus in zip(
          timeline.cohorts, timeline.spans,
          timeline.staleness or itertools.repeat(itertools.repeat(0)))
      for client, span, tau in zip(cohort, spans, taus)
      if client in row and span[0] < last]
  y, begin, end, staleness = np.array(updates).reshape(-1, 4).T
  figure = Figure((9, 2.5 + .14 * len(row) + 2 * bool(timeline.staleness)),
                  layout='constrained')
  heights = 1.2 + .14 * len(row), 2
  axes, *below = np.atleast_1d(figure.subplots(
      2, height_ratios=heights) if timeline.staleness else figure.subplots())
  axes.barh(y, end - begin, left=begin, height=.7, edgecolor='white',
            linewidth=.5, color=cm.Blues(
                .4 + .6 * staleness / staleness.max(initial=1)))
  for time in timeline.seconds[:shown]:
    axes.axvline(time, color='#D55E00', linewidth=.6)
  word = ('server steps (darker: more stale)' if timeline.staleness
          else 'rounds')
  axes.set(xlabel='simulated time (s)', ylabel='client', xlim=(0, last),
           title=f'{len(row)} clients in the first {shown:,} of '
           f'{len(timeline.seconds):,} {word}')
  axes.set_yticks(range(len(row)), [
      client_names[client][:MAX_NAME] for client in row
  ] if client_names else row, fontsize=7)
  axes.invert_yaxis()
  axes.grid(visible=False)
  if below:
    counts = np.bincount(np.concatenate(timeline.staleness))
    below[0].bar(range(len(counts)), counts, color='#0072B2')
    below[0].set(xlabel='staleness (server steps)', ylabel='updates',
                 title='All updates')
  with rc_context(VECTOR):
    figure.savefig(path, dpi=120)


def _shown(timeline):
  """Returns how many steps are drawn, and the rows of their clients."""
  clients: dict[int, None] = {}
  shown = 0
  while shown < min(_MAX_STEPS, len(timeline.cohorts)) and (
      len(clients) < _MAX_CLIENTS):
    clients |= dict.fromkeys(timeline.cohorts[shown])
    shown += 1
  shown_clients = sorted(list(clients)[:_MAX_CLIENTS])
  return shown, {client: i for i, client in enumerate(shown_clients)}
