"""Shows the progress of long work on files: a bar, or a few lines in logs."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import sys
import time

_SECONDS = 2  # at least, between two lines


@contextlib.contextmanager
def shown(title: str, total: int, unit: str, done: int = 0,
          clock: Callable[[], float] = time.monotonic
          ) -> Iterator[Callable[[int], None]]:
  """Shows how far a piece of work is.

  Where stderr is a terminal, draws a bar on it. Elsewhere, as in a log file,
  prints `title` at once and, of work that takes seconds, a line for each tenth.

  Args:
    title: what is being done, with the amount.
    total: the amount of work in units; 0 where it is not known.
    unit: of the amount: "B" of bytes, or a plural.
    done: how much was done before.
    clock: returns seconds.

  Yields:
    A function advance(count) to call after each `count` units of work.
  """
  if sys.stderr.isatty():
    import tqdm

    with tqdm.tqdm(total=total or None, initial=done, desc=title,
                   unit=unit if unit == 'B' else f' {unit}',
                   unit_scale=unit == 'B', dynamic_ncols=True) as bar:
      yield bar.update
    return

  print(title, flush=True)
  begin = last = clock()
  tenths = 10 * done // total if total else 0

  def advance(count):
    nonlocal done, last, tenths
    done += count
    now = clock()
    if total and 10 * done // total > tenths and now - last >= _SECONDS:
      last, tenths = now, 10 * done // total
      print(f'{title}: {100 * done // total}% after {now - begin:.0f} s',
            flush=True)

  yield advance
