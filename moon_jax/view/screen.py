"""Renders a status as lines of text for a terminal of any size.

At 72 columns:

    digits, moon, seed 0: runs/digits-moon-0123abcd
    round 13 of 20 ━━━━━━━━━━━━━━━━━━━━━━━━━━━──────────────  65%  34 s left
    round 14: training                                                   3 s
    test accuracy      0.9123  ▁▁▂▄▅▆▇▇▇▇███  best 0.9200 after round 11
    train loss         0.2345  █▇▅▄▃▂▂▁▁▁▁▁▁
    12,345 examples/s, 2.3 s per round, lanes 93% used, memory 1.2 GB
"""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from moon_jax.view.status import Status

_FIRST = ('test_accuracy', 'validation_accuracy', 'global_heldout_accuracy',
          'train_loss', 'cross_entropy', 'contrastive_loss', 'proximal_term',
          'drift', 'update_cosine')
_MAX_METRICS = 12
_MAX_SPARK_LINE = 60
_BLOCKS = '▁▂▃▄▅▆▇█'
_ASCII_BLOCKS = '_.-=+*%#'


def render(status: Status, width: int, height: int, now: float,
           is_unicode: bool = True) -> list[Text]:
  """Returns the lines of the view.

  Args:
    status: what to show.
    width: columns of the terminal; no line is wider.
    height: rows of the terminal; metrics that do not fit are left out.
    now: the time, see `Status`.
    is_unicode: whether the terminal can show block characters.
  """
  lines = [Text(status.title, style='bold')]
  if status.num_rounds:
    lines.append(_progress(status, width, now, is_unicode))
  activity = _activity(status, width, now)
  speed = _speed(status, width)
  room = max(height - 1 - len(lines) - len(activity) - len(speed), 0)
  metrics = _metrics(status, width, is_unicode)[:room]
  lines = [*lines, *activity, *metrics, *speed][:max(height - 1, 1)]
  for line in lines:
    line.truncate(width, overflow='ellipsis' if is_unicode else 'crop')
    line.no_wrap = True
  return lines


def spark_line(values: Sequence[float], width: int,
               is_unicode: bool = True) -> str:
  """Returns a line of blocks whose heights are the values.

  Args:
    values: one or more. If there are more than `width`, each block is the mean
      of values that follow one another.
    width: the most characters.
    is_unicode: see `render`.
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


def size(num_bytes: float) -> str:
  """Formats bytes with a decimal unit."""
  for unit in ('B', 'kB', 'MB', 'GB'):
    if num_bytes < 1000:
      return f'{num_bytes:.0f} {unit}' if unit in 'B kB' else (
          f'{num_bytes:.1f} {unit}')
    num_bytes /= 1000
  return f'{num_bytes:.1f} TB'


def _progress(status, width, now, is_unicode):
  done = f'round {status.rounds_done} of {status.num_rounds} '
  if status.num_runs > 1:
    done = (f'{status.rounds_done} of {status.num_rounds} rounds of '
            f'{status.num_runs} runs ')
  fraction = status.rounds_done / status.num_rounds
  left = status.seconds_left(now)
  end = f' {fraction:4.0%}'
  if left is not None:
    end += f'  {duration(left)} left'
  elif fraction < 1:
    end += f'  {duration(now - status.start)}'
  length = width - len(done) - len(end)
  if length < 5:
    return Text(done.rstrip() + end)
  filled = int(length * fraction)
  full, empty = ('━', '─') if is_unicode else ('#', '-')
  return Text.assemble(done, (full * filled, 'green'),
                       (empty * (length - filled), 'dim'), end)


def _activity(status, width, now):
  if not status.activity:
    return []
  elapsed = duration(now - status.since)
  text = set_cell_size(
      status.activity, max(width - len(elapsed) - 1, 0)) + f' {elapsed}'
  return [Text(text, style='cyan')]


def _metrics(status, width, is_unicode):
  names = [*(name for name in _FIRST if name in status.series),
           *sorted(status.series.keys() - set(_FIRST))][:_MAX_METRICS]
  label_width = max(map(len, names), default=0) + 2
  lines = []
  for name in names:
    values = status.series[name]
    number = f'{values[-1]:.4f}' if abs(values[-1]) < 1e4 else (
        f'{values[-1]:.3g}')
    start = f'{name.replace("_", " "):{label_width}}{number:>8}  '
    note = _note(status, name)
    room = width - len(start) - len(note)
    if room < 10:
      note, room = '', width - len(start)
    line = Text(start)
    if room >= 3:
      line.append(spark_line(values, min(room, _MAX_SPARK_LINE), is_unicode),
                  style='green' if 'accuracy' in name else 'yellow')
    lines.append(line.append(note))
  return lines


def _note(status, name):
  if name != 'test_accuracy':
    return ''
  if status.accuracies:
    low, high = status.accuracies
    return f'  {low:.4f} to {high:.4f}'
  best, at = status.best or (0., 0)
  return f'  best {best:.4f} after round {at}' if at else ''


def _speed(status, width):
  parts = []
  if status.examples_per_second:
    parts += [f'{status.examples_per_second:,.0f} examples/s',
              f'{status.seconds:.1f} s per round']
  if status.lane_utilization is not None:
    parts.append(f'lanes {status.lane_utilization:.0%} used')
  parts += [f'{name} {size(used)}' for name, used in status.memory.items()]
  lines: list[str] = []
  for part in parts:
    if lines and cell_len(lines[-1]) + len(part) + 2 <= width:
      lines[-1] += f', {part}'
    else:
      lines.append(part)
  return [Text(line, style='dim') for line in lines]
