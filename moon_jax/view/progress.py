"""Shows what runs do: a view on a terminal, otherwise lines of text.

log.txt of each run has the same events, and the warnings on stderr.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os
import stat
import sys
import threading
import time
import traceback
from typing import Any

from moon_jax.distributed import processes
from moon_jax.errors import DivergedError, InterruptedRun, UserError
from moon_jax.view.run_log import Copy, RunLog
from moon_jax.view.status import Status
from moon_jax.view.text import metric

_EXPECTED = DivergedError, InterruptedRun, UserError

_shown: list[Any] = []  # the `terminal.Terminal` that is up


class Progress:
  """A context manager that shows the progress of runs that train together.

  On a terminal it draws a view. Elsewhere it prints a line per round, and a
  line for an activity that takes long. Warnings on stderr are also logged.

  Attributes:
    logs: of each run; those of the first process are written.
    status: what the view shows.
  """

  def __init__(self, title: str, num_runs: int = 1, rounds_later: int = 0):
    self.logs = [RunLog() for _ in range(num_runs)]
    self.status = Status(title, num_runs, rounds_later)
    self._has_view = False

  def _change(self, **fields):
    self.status = dataclasses.replace(self.status, **fields)

  def __enter__(self):
    self._stack = contextlib.ExitStack()
    if not processes.is_first():
      return self
    self._stack.enter_context(contextlib.redirect_stderr(
        Copy(sys.stderr, self.log)))
    if _can_show():
      from moon_jax.view import terminal  # imports rich

      self._has_view = True
      _shown.append(terminal.Terminal(lambda: self.status))
      self._stack.callback(release)
    return self

  def __exit__(self, kind, error, trace):
    self._change(activity='')
    self._stack.close()
    if isinstance(error, _EXPECTED):
      self.log(f'{type(error).__name__}: {error}')
    elif error is not None:
      self.log(''.join(traceback.format_exception(error)))

  def log(self, text: str) -> None:
    """Writes an event to the logs of all runs."""
    for log in self.logs:
      log.write(text)

  def message(self, text: str) -> None:
    """Prints and logs a message of one or more lines."""
    self.log(text)
    print(text, flush=True)

  @contextlib.contextmanager
  def busy(self, activity: str, after: float = 10.) -> Iterator[None]:
    """A context that shows what its body does; lines of text do so if it takes
    longer than `after` seconds."""
    previous, since = self.status.activity, self.status.since
    self._change(activity=activity, since=time.monotonic())
    timer = threading.Timer(after, print, (activity,), {'flush': True})
    timer.daemon = True
    if not self._has_view:
      timer.start()
    try:
      yield
    finally:
      timer.cancel()
      if timer.is_alive():
        timer.join()
      self._change(activity=previous, since=since)

  @contextlib.contextmanager
  def phase(self, activity: str, hint: str = '') -> Iterator[None]:
    """`busy`, for an activity whose duration is logged."""
    start = time.monotonic()
    with self.busy(activity + hint):
      yield
    self.log(f'{activity}: {time.monotonic() - start:.1f} s')

  def training(self, num_rounds: int, rounds_done: int,
               lines: Sequence[Mapping[str, Any]] = ()) -> None:
    """Begins to show rounds, after those that earlier commands have done.

    `lines` are those of metrics.jsonl, of a single run that resumes.
    """
    now = time.monotonic()
    self._change(num_rounds=num_rounds, rounds_done=rounds_done,
                 first=(rounds_done, now), last_end=now)
    for line in lines:
      self.status = self.status.with_metrics([line])

  def rounds(self, lines: Sequence[Mapping[str, Any]],
             lane_utilization: float | None = None) -> None:
    """Shows the lines of a round of each run that has trained one.

    `lane_utilization` is the fraction of the lanes' steps that trained.
    """
    if not lines:
      return
    seconds = sum(line['seconds'] for line in lines)
    speed = sum(line['examples_per_second'] * line['seconds']
                for line in lines) / max(seconds, 1e-9)
    self.status = self.status.with_metrics(lines)
    self._change(
        rounds_done=self.status.rounds_done + len(lines),
        last_end=time.monotonic(), speed=(
            f'{speed:,.0f} examples/s', f'{seconds:.1f} s per round',
            *([] if lane_utilization is None else
              [f'lanes {lane_utilization:.0%} used'])))
    if self._has_view:
      return
    status = self.status
    if status.num_runs == 1:
      print(round_text(lines[0], status.num_rounds), flush=True)
      return
    accuracy = (f'test accuracy {status.note}  '
                if any('test_accuracy' in line for line in lines) else '')
    print(f'{status.rounds_done}/{status.num_rounds} rounds of '
          f'{status.num_runs} runs  {accuracy}{speed:,.0f} examples/s  '
          f'{seconds:.1f} s', flush=True)


def _can_show():
  """Returns whether stderr is a terminal that can move its cursor, and stdout
  no pipe, since programs such as tee write to the same terminal."""
  try:
    return (sys.stderr.isatty() and os.isatty(2)
            and not stat.S_ISFIFO(os.fstat(1).st_mode)
            and (os.environ.get('TERM') or 'dumb') != 'dumb')
  except (AttributeError, OSError, ValueError):  # a stream is closed
    return False


def release() -> None:
  """Restores the terminal, if a view is on it.

  Call it before a process ends without leaving the context of `Progress`.
  """
  while _shown:
    _shown.pop().stop()


def round_text(line: Mapping[str, Any], num_rounds: int) -> str:
  """Returns the text of a round of a single run with its line."""
  measure = 'accuracy' if 'test_accuracy' in line else 'loss'
  return '  '.join([
      f'round {line["round"]}/{num_rounds}',
      *(f'{name.replace("_", " ")} {metric(name, line[name])}'
        for name in ('train_loss', f'test_{measure}', f'validation_{measure}')
        if line.get(name) is not None),
      f'{line["examples_per_second"]:,.0f} examples/s',
      f'{line["seconds"]:.1f} s'])
