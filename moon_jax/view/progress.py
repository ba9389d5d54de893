"""Shows what runs do: a view on a terminal, otherwise lines of text."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import os
import sys
import threading
import time
from typing import Any

from moon_jax.distributed import processes
from moon_jax.view import terminal
from moon_jax.view.run_log import Copy, RunLog
from moon_jax.view.status import Status


class Progress:
  """A context manager that shows the progress of runs that train together.

  On a terminal it draws a view. Elsewhere it prints a line per round, and a
  line for an activity that takes long. Warnings on stderr are also logged.

  Attributes:
    logs: of each run; those of the first process are written.
  """

  def __init__(self, title: str, num_runs: int = 1, is_quiet: bool = False):
    """Stores the arguments.

    Args:
      title: describes the runs.
      num_runs: runs that train together.
      is_quiet: whether to print nothing.
    """
    self.logs = [RunLog() for _ in range(num_runs)]
    self._is_quiet = is_quiet
    self._status = Status(title, time.monotonic(), num_runs=num_runs)
    self._terminal = None

  def __enter__(self):
    self._stack = contextlib.ExitStack()
    if not processes.is_first():
      return self
    self._stack.enter_context(contextlib.redirect_stderr(
        Copy(sys.stderr, self.logs)))
    if not self._is_quiet and terminal.is_possible():
      from moon_jax.view import screen  # imports rich

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
      print(round_text(lines[0], self._status.num_rounds)
            if self._status.num_runs == 1 else _runs_text(self._status, lines),
            flush=True)


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


def _runs_text(status, lines):
  parts = [f'{status.rounds_done}/{status.num_rounds} rounds of '
           f'{status.num_runs} runs']
  if any('test_accuracy' in line for line in lines):
    low, high = status.accuracies
    parts.append(f'test accuracy {low:.4f} to {high:.4f}')
  return '  '.join([*parts, f'{status.examples_per_second:,.0f} examples/s',
                    f'{status.seconds:.1f} s'])


def memory_in_use() -> dict[str, int]:
  """Returns bytes in use: of this process, and of its devices if known."""
  import jax

  stats = [device.memory_stats() for device in jax.local_devices()]
  used = sum(s['bytes_in_use'] for s in stats if s and 'bytes_in_use' in s)
  memory = {'device memory': used} if used else {}
  try:
    with open('/proc/self/statm', encoding='ascii') as statm:
      pages = int(statm.read().split()[1])
  except OSError:  # not Linux
    return memory
  return {'memory': pages * os.sysconf('SC_PAGE_SIZE')} | memory
