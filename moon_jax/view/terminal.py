"""Draws the view of a status at the bottom of a terminal, below all messages.

At 72 columns:

    digits, moon, seed 0: runs/digits-moon-0123456789abcdef
    round 13 of 20 ━━━━━━━━━━━━━━━━━━━━━━━━━━━──────────────  65%  34 s left
    round 14: training                                                   3 s
    test accuracy      91.23%  ▁▁▂▄▅▆▇▇▇▇███  best 92.00% after round 11
    train loss         0.2345  █▇▅▄▃▂▂▁▁▁▁▁▁
    12,345 examples/s, 2.3 s per round, lanes 93% used

While the view is up, file descriptors 2 and, if it is a terminal, 1 are a pipe.
So messages of any code, also of XLA's, are read line by line and printed above
the view.
"""

from collections.abc import Callable
import contextlib
import os
import sys
import threading
import time

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from moon_jax.view.status import Status
from moon_jax.view.text import duration, metric, spark_line

_MAX_METRICS = 12
_LEAST_SPARK_LINE, _MAX_SPARK_LINE = 8, 60
_OTHER_LINES = 5  # besides metrics
_MESSAGE_BYTES = 2**16


class _Console(Console):
  """A console on a file of its own, since the standard streams are pipes."""

  @property
  def size(self):
    try:
      columns, rows = os.get_terminal_size(self.file.fileno())
    except OSError:
      columns, rows = 0, 0
    return ConsoleDimensions(columns or 80, rows or 24)  # some report 0

  def show_cursor(self, show=True):
    return False  # stays visible: a killed process could not show it again


class Terminal:
  """A view that is up from its creation until `stop`."""

  def __init__(self, status: Callable[[], Status]):
    """Puts the view up; `status` returns what it shows now."""
    _flush()
    self._console = console = _Console(
        file=open(os.dup(2), 'w', encoding=sys.stderr.encoding,
                  errors='replace'),
        force_terminal=True, highlight=False, markup=False)
    self._live = Live(
        get_renderable=lambda: render(
            status(), time.monotonic(), *console.size,
            not console.options.ascii_only),
        console=console, redirect_stdout=False, redirect_stderr=False,
        vertical_overflow='crop')
    read_end, write_end = os.pipe()
    self._saved = {number: os.dup(number)
                   for number in ((1, 2) if os.isatty(1) else (2,))}
    for number in self._saved:
      os.dup2(write_end, number)
    os.close(write_end)
    self._reader = threading.Thread(
        target=self._read, args=(read_end,), daemon=True)
    self._live.start()
    self._reader.start()

  def stop(self) -> None:
    """Leaves the last view on the terminal, with the cursor below it."""
    _flush()
    for number, saved in self._saved.items():
      os.dup2(saved, number)
      os.close(saved)
    self._reader.join(.5)  # a child process may keep the pipe open
    with contextlib.suppress(OSError):  # the terminal was closed
      self._live.stop()

  def _read(self, read_end):
    """Prints messages above the view until the pipe is closed."""
    with open(read_end, 'rb', buffering=0) as pipe:
      partial = b''
      while data := pipe.read(_MESSAGE_BYTES):
        lines, newline, partial = (partial + data).rpartition(b'\n')
        if newline:
          self._print(lines)
      if partial:
        self._print(partial)

  def _print(self, message):
    text = Text.from_ansi(message.decode(errors='replace').replace('\r', ''))
    with contextlib.suppress(OSError):
      self._console.print(text, soft_wrap=True)


def _flush():
  for stream in sys.stdout, sys.stderr:
    with contextlib.suppress(AttributeError, OSError, ValueError):
      stream.flush()


def render(status: Status, now: float, width: int, height: int,
           is_unicode: bool = True) -> Group:
  """Returns the lines of the view.

  Accuracies are first, and metrics that do not fit the height are left out.
  `now` is a time of `Status`, and `is_unicode` says whether the terminal can
  show block characters.
  """
  lines = [Text(status.title, style='bold', no_wrap=True, overflow='ellipsis')]
  if status.num_rounds:
    lines.append(_progress(status, now))
  if status.activity:
    lines.append(_row(Text(status.activity, style='cyan'),
                      Text(duration(now - status.since), style='cyan'), wide=0))
  names = sorted(status.series, key=lambda name: 'accuracy' not in name)
  names = names[:min(_MAX_METRICS, max(height - _OTHER_LINES, 0))]
  shown = {name.replace('_', ' '): metric(name, status.series[name][-1])
           for name in names}
  room = width - 4 - max(map(len, shown), default=0) - max(
      map(len, shown.values()), default=0)  # 2 between columns
  note = status.note if room - len(status.note) >= _LEAST_SPARK_LINE + 2 else ''
  room -= len(note) + 2 * bool(note)
  metrics = Table.grid(padding=(0, 2))
  for justify in 'left', 'right', 'left', 'left':
    metrics.add_column(justify=justify, no_wrap=True)  # type: ignore[arg-type]
  for name, (label, value) in zip(names, shown.items()):
    metrics.add_row(
        label, value,
        Text(spark_line(status.series[name], min(max(room, 1),
                                                 _MAX_SPARK_LINE), is_unicode),
             style='green' if 'accuracy' in name else 'yellow'),
        note if name == 'test_accuracy' else '')
  return Group(*lines, metrics, Text(', '.join(status.speed), style='dim'))


def _progress(status, now):
  done = f'round {status.rounds_done} of {status.num_rounds}'
  if status.num_runs > 1:
    done = (f'{status.rounds_done} of {status.num_rounds} rounds of '
            f'{status.num_runs} runs')
  end = f'{status.rounds_done / status.num_rounds:4.0%}'
  if (left := status.seconds_left(now)) is not None:
    end += f'  {duration(left)} left'
    if (all_left := status.seconds_left_of_all(now)) is not None:
      end += f', {duration(all_left)} for all programs'
  return _row(done, ProgressBar(status.num_rounds, status.rounds_done), end,
              wide=1)


def _row(*cells, wide):
  """Returns a line whose cell `wide` takes the room that is left."""
  row = Table.grid(padding=(0, 1), expand=True)
  for index in range(len(cells)):
    row.add_column(ratio=int(index == wide) or None, no_wrap=True)
  row.add_row(*cells)
  return row
