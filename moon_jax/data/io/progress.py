"""Progress of long operations on files: a bar, or a few lines in a log."""

from collections.abc import Callable, Iterator
import contextlib
import sys
import time

_MIN_INTERVAL = 2  # seconds between two lines


@contextlib.contextmanager
def show_progress(title: str, total: int, unit: str, done: int = 0,
                  clock: Callable[[], float] = time.monotonic
                  ) -> Iterator[Callable[[int], None]]:
  """Shows the progress of an operation.

  If stderr is a terminal, draws a progress bar on it. Otherwise, prints `title`
  at once and then one line per 10% of the work, at most every 2 seconds.

  Args:
    title: description of the operation.
    total: amount of work in units; 0 if it is unknown.
    unit: "B" for bytes or a plural noun.
    done: amount of work that was done before.
    clock: returns the time in seconds.

  Yields:
    advance(count), to call after each `count` units of work.
  """
  if sys.stderr.isatty():
    yield from _bar(title, total, unit, done)
    return

  print(title, flush=True)
  start = last = clock()
  tenths = 10 * done // total if total else 0

  def advance(count):
    nonlocal done, last, tenths
    done += count
    now = clock()
    if total and 10 * done // total > tenths and now - last >= _MIN_INTERVAL:
      last, tenths = now, 10 * done // total
      print(f'{title}: {100 * done // total}% after {now - start:.0f} s',
            flush=True)

  yield advance


def _bar(title, total, unit, done):
  """Draws a bar; yields the function that advances it."""
  from rich import console, progress

  counts = ([progress.DownloadColumn(), progress.TransferSpeedColumn()]
            if unit == 'B' else
            [progress.MofNCompleteColumn(), progress.TextColumn(unit)])
  with progress.Progress(
      progress.TextColumn('{task.description}'), progress.BarColumn(), *counts,
      progress.TimeRemainingColumn(),
      console=console.Console(stderr=True)) as bar:
    task = bar.add_task(title, total=total or None, completed=done)
    yield lambda count: bar.update(task, advance=count)
