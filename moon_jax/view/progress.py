"""Shows what runs do: a view on a terminal, otherwise lines of text."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import sys
import threading
import time
from typing import Any

from moon_jax.distributed import processes
from moon_jax.view.run_log import Copy
from moon_jax.view.run_log import RunLog
from moon_jax.view.status import Status


class Progress:
  """A context manager that shows the progress of runs that train together.

  On a terminal it draws a view. Elsewhere it prints a line per round, and a
  line for an activity that takes long. Warnings on stderr are also logged.

  Attributes:
    logs: of each run; those of the first process are written.
  """

  def __init__(self, title: str, num_runs: int = 1, is_quiet: bool = False,
               is_plain: bool = False):
    """Stores the arguments.

    Args:
      title: describes the runs.
      num_runs: runs that train together.
      is_quiet: whether to print nothing.
      is_plain: whether to print lines on a terminal too.
    """
    self.logs = [RunLog() for _ in range(num_runs)]
    self._is_quiet, self._is_plain = is_quiet, is_plain
    self._status = Status(title, time.monotonic(), num_runs=num_runs)
    self._terminal = None

  def __enter__(self):
    self._stack = contextlib.ExitStack()
    if processes.is_first():
      self._stack.enter_context(contextlib.redirect_stderr(
          Copy(sys.stderr, self.logs)))
    if not self._is_quiet and not self._is_plain and processes.is_first():
      from moon_jax.view import terminal

      if terminal.is_possible():
        from moon_jax.view import screen

        self._terminal = terminal.Terminal(
            lambda width, height, is_unicode: screen.render(
                self._status, width, height, time.monotonic(), is_unicode))
        self._stack.callback(self._terminal.stop)
    return self

  def __exit__(self, kind, error, trace):
    self._status = self._status.doing('', time.monotonic())
    self._stack.close()
    if error is not None:
      for log in self.logs:
        log.write_error(error)

  def message(self, text: str) -> None:
    """Prints and logs a message of one or more lines."""
    for log in self.logs:
      log.write(text)
    if not self._is_quiet:
      print(text, flush=True)

  @contextlib.contextmanager
  def busy(self, activity: str, after: float = 10.) -> Iterator[None]:
    """A context that shows the activity of its body.

    Args:
      activity: such as "round 3: evaluating on 10,000 examples".
      after: seconds of the activity after which lines of text name it.
    """
    previous, since = self._status.activity, self._status.since
    self._status = self._status.doing(activity, time.monotonic())
    timer = None
    if self._terminal is None and not self._is_quiet:
      timer = threading.Timer(after, print, (activity,), {'flush': True})
      timer.daemon = True
      timer.start()
    try:
      yield
    finally:
      if timer:
        timer.cancel()
        timer.join()
      self._status = self._status.doing(previous, since)

  @contextlib.contextmanager
  def phase(self, activity: str) -> Iterator[None]:
    """`busy`, for an activity whose duration is logged."""
    start = time.monotonic()
    with self.busy(activity):
      yield
    for log in self.logs:
      log.write(f'{activity}: {time.monotonic() - start:.1f} s')

  def training(self, num_rounds: int, rounds_done: int,
               lines: Sequence[Mapping[str, Any]] = ()) -> None:
    """Begins to show rounds.

    Args:
      num_rounds: of all runs together.
      rounds_done: likewise, by earlier commands.
      lines: of metrics.jsonl, of a single run that resumes.
    """
    self._status = self._status.training(
        num_rounds, rounds_done, lines, time.monotonic())

  def rounds(self, lines: Sequence[Mapping[str, Any]],
             lane_utilization: float | None = None) -> None:
    """Shows the metrics of a round of each run that has trained one.

    Args:
      lines: of metrics.jsonl.
      lane_utilization: the fraction of the lanes' steps that trained.
    """
    if not lines:
      return
    memory = memory_in_use() if self._terminal else {}
    self._status = self._status.after_rounds(
        lines, time.monotonic(), lane_utilization, memory)
    if self._terminal is None and not self._is_quiet:
      print(self._text(lines), flush=True)

  def _text(self, lines):
    status = self._status
    if status.num_runs == 1:
      return round_text(lines[0], status.num_rounds)
    return runs_text(
        lines, status.rounds_done, status.num_rounds, status.num_runs)


def round_text(line: Mapping[str, Any], num_rounds: int) -> str:
  """Returns the text of a round of a single run.

  Args:
    line: of metrics.jsonl.
    num_rounds: of the run.
  """
  parts = [f'round {line["round"]}/{num_rounds}']
  if 'train_loss' in line:
    parts.append(f'train loss {line["train_loss"]:.4f}')
  accuracies = [f'{name} accuracy {line[f"{name}_accuracy"]:.4f}'
                for name in ('test', 'validation')
                if f'{name}_accuracy' in line]
  if accuracies:
    parts.append(', '.join(accuracies))
  speed = f'{line["examples_per_second"]:,.0f} examples/s'
  return '  '.join([*parts, speed, f'{line["seconds"]:.1f} s'])


def runs_text(lines: Sequence[Mapping[str, Any]], rounds_done: int,
            num_rounds: int, num_runs: int) -> str:
  """Returns the text of a round of several runs.

  Args:
    lines: of metrics.jsonl, of each of the runs.
    rounds_done: of all runs, with this one.
    num_rounds: of all runs.
    num_runs: runs that train together.
  """
  seconds = sum(line['seconds'] for line in lines)
  examples = sum(line['examples_per_second'] * line['seconds']
                 for line in lines)
  accuracies = [line['test_accuracy'] for line in lines
                if 'test_accuracy' in line]
  parts = [f'{rounds_done}/{num_rounds} rounds of {num_runs} runs']
  if accuracies:
    parts.append(f'test accuracy {min(accuracies):.4f} to '
                 f'{max(accuracies):.4f}')
  parts += [f'{examples / max(seconds, 1e-9):,.0f} examples/s',
            f'{seconds:.1f} s']
  return '  '.join(parts)


def memory_in_use() -> dict[str, int]:
  """Returns bytes in use: of this process, and of its devices if known."""
  import jax

  stats = [device.memory_stats() for device in jax.local_devices()]
  used = sum(s['bytes_in_use'] for s in stats if s and 'bytes_in_use' in s)
  return _resident() | ({'device memory': used} if used else {})


def _resident():
  try:
    with open('/proc/self/statm', encoding='ascii') as statm:
      pages = int(statm.read().split()[1])
  except (OSError, ValueError, IndexError):
    return {}  # not Linux
  return {'memory': pages * os.sysconf('SC_PAGE_SIZE')}
