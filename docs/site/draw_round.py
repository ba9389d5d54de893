"""Draws the table of a round, as the scheduler plans it, to docs/round.svg.

    python docs/site/draw_round.py

The federation: digits, 10 clients, Dirichlet 0.2, 2 local epochs, batches of
16. Dashed lines are the bounds of segments, in which no job starts or ends.
"""

import pathlib
from xml.sax import saxutils

import numpy as np

import moon_jax as mj
from moon_jax.engine import schedule

OUT = pathlib.Path(__file__).parents[1] / 'round.svg'
PANELS = [(10, 'one lane per client, as with a plain vmap'),
          (3, 'three lanes'), (1, 'one lane, as in a sequential simulator')]
COLORS = ['#8db4dc', '#f5ae62', '#8fc886', '#ee9193', '#cfa3c4', '#c4a38d',
          '#93cdc8', '#f0d565', '#ffb5bd', '#c9c1bd']
_LEFT, _WIDTH, _LANE = 62, 620, 17  # of the bars; a lane's height, in pixels
_IDLE = '#e6e8ec'


def tables() -> list[schedule.Table]:
  """Returns the table of the first round for each number of lanes."""
  data = mj.load_dataset('digits')
  clients = mj.partition.dirichlet(
      data.train_labels, num_clients=10, beta=0.2, seed=0)
  batches, steps = schedule.local_batches(
      clients, 2, 16, len(data.train_labels), np.random.default_rng([0, 0]))
  work = schedule.Work(
      run=np.zeros(10, np.int32), client=np.arange(10, dtype=np.int32),
      num_examples=np.array([len(i) for i in clients]), num_steps=steps,
      batches=batches, is_received=np.ones(10, bool))
  return [schedule.plan(work, schedule.shape(steps, 10, lanes, 16))
          for lanes, _ in PANELS]


def bars(table: schedule.Table) -> list[tuple[int, int, int, int]]:
  """Returns (lane, first row, rows, client) of each job of a table."""
  boxes = []
  for slot, (client, rows) in enumerate(
      zip(table.jobs.client, table.jobs.num_steps)):
    if rows:
      row, lane = np.argwhere(table.job_TL == slot)[0]
      boxes.append((int(lane), int(row), int(rows), int(client)))
  return sorted(boxes)


def draw() -> str:
  """Returns the picture as SVG."""
  planned = tables()
  longest = max(int(table.num_rows.max()) for table in planned)
  scale = _WIDTH / longest
  parts, top = [], 8
  for table, (lanes, title) in zip(planned, PANELS):
    rows = int(table.num_rows.max())
    busy = schedule.utilization(table)
    parts.append(_text(4, top + 14, f'{title}: {rows} rows, '
                       f'{busy:.0%} of the steps train', weight='bold'))
    top += 24
    for lane in range(lanes):
      y = top + lane * _LANE
      parts.append(_text(_LEFT - 6, y + 12, f'lane {lane}', anchor='end'))
      parts.append(_box(_LEFT, y, rows * scale, _IDLE))
    for lane, row, count, client in bars(table):
      x, y = _LEFT + row * scale, top + lane * _LANE
      parts.append(_box(x, y, count * scale, COLORS[client]))
      if count * scale > 9 * len(str(client)) + 2:
        parts.append(_text(x + count * scale / 2, y + 12.5, str(client),
                           anchor='middle'))
    top += lanes * _LANE
    if 1 < lanes < 10:
      bounds = table.bounds[0][:int(table.num_segments[0]) + 1]
      for row in bounds:
        x = _LEFT + int(row) * scale
        parts.append(f'<path d="M{x:.1f} {top - lanes * _LANE - 3}V{top + 4}" '
                     'stroke="#1b1d21" stroke-dasharray="2 2"/>')
      top += 2
    top += 14
  parts.append(_text(_LEFT, top + 6, 'rows: local steps, one after another'))
  parts.append(f'<path d="M{_LEFT + 236} {top + 2}h70m-6 -4l6 4l-6 4" '
               'stroke="#1b1d21" fill="none"/>')
  width, height = _LEFT + _WIDTH + 8, top + 16
  return (
      f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
      'font-family="system-ui, sans-serif" font-size="13">\n'
      f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
      + '\n'.join(parts) + '\n</svg>\n')


def _box(x, y, width, color):
  return (f'<rect x="{x:.1f}" y="{y + 1}" width="{width:.1f}" '
          f'height="{_LANE - 2}" fill="{color}" stroke="#ffffff"/>')


def _text(x, y, text, anchor='start', weight='normal'):
  return (f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" '
          f'font-weight="{weight}" fill="#1b1d21">'
          f'{saxutils.escape(text)}</text>')


if __name__ == '__main__':
  OUT.write_text(draw(), encoding='utf-8')
