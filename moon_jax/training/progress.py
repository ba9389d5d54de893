"""Shows the progress of a run: a bar on a terminal, otherwise a line per round.
"""

from collections.abc import Sequence
import contextlib
import sys
import threading
from typing import Any

import tqdm

from moon_jax.distributed import processes

_REFRESH_SECONDS = 1.  # between two updates of the bar's elapsed time


class Progress:
  """A context manager that shows progress.

  Use `busy` around work that can take long, and call `round` after each round.
  """

  def __init__(self, num_rounds: int, rounds_done: int = 0, num_runs: int = 1):
    """Begins to show progress.

    Args:
      num_rounds: of all runs together.
      rounds_done: likewise.
      num_runs: runs that train together.
    """
    self._num_rounds, self._num_runs = num_rounds, num_runs
    self._rounds_done = rounds_done
    self._bar = None
    self._accuracy = self._metrics = ''
    if sys.stderr.isatty() and processes.is_first():
      self._bar = tqdm.tqdm(
          total=num_rounds, initial=rounds_done, unit='round',
          dynamic_ncols=True)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._bar is not None:
      self._bar.close()

  @contextlib.contextmanager
  def busy(self, activity: str, after: float = 10.):
    """A context that shows the activity of its body.

    A bar shows it immediately and updates its elapsed time. Without a bar one
    line is printed once the body has taken `after` seconds.

    Args:
      activity: such as "round 3: evaluating on 10,000 examples".
      after: seconds.
    """
    if self._bar is not None:
      self._bar.set_postfix_str(
          ', '.join(filter(None, [self._metrics, activity])))
    ended = threading.Event()
    thread = threading.Thread(
        target=self._show, args=(activity, after, ended), daemon=True)
    thread.start()
    try:
      yield
    finally:
      ended.set()
      thread.join()

  def _show(self, activity, after, ended):
    if self._bar is None:
      if not ended.wait(after):
        print(activity, flush=True)
      return
    while not ended.wait(_REFRESH_SECONDS):
      self._bar.refresh()

  def rounds(self, lines: Sequence[dict[str, Any]]) -> None:
    """Shows the metrics of a round of each run that has trained one.

    Args:
      lines: of metrics.jsonl.
    """
    if self._num_runs == 1:
      for line in lines:
        self.round(line)
      return
    if not lines:
      return
    seconds = sum(line['seconds'] for line in lines)
    examples = sum(line['examples_per_second'] * line['seconds']
                   for line in lines)
    speed = f'{examples / max(seconds, 1e-9):,.0f} examples/s'
    accuracies = [line['test_accuracy'] for line in lines
                  if 'test_accuracy' in line]
    if accuracies:
      self._accuracy = (f'test accuracy {min(accuracies):.4f} to '
                        f'{max(accuracies):.4f}')
    self._rounds_done += len(lines)
    if self._bar is not None:
      self._metrics = ', '.join(filter(None, [self._accuracy, speed]))
      self._bar.set_postfix_str(self._metrics, refresh=False)
      self._bar.update(len(lines))
      return
    done = (f'{self._rounds_done}/{self._num_rounds} rounds of '
            f'{self._num_runs} runs')
    parts = [done, self._accuracy * bool(accuracies), speed, f'{seconds:.1f} s']
    print('  '.join(filter(None, parts)), flush=True)

  def round(self, line: dict[str, Any]) -> None:
    """Shows the metrics of a round, a line of metrics.jsonl."""
    speed = f'{line["examples_per_second"]:,.0f} examples/s'
    if 'test_accuracy' in line:
      self._accuracy = f'test accuracy {line["test_accuracy"]:.4f}'
    if 'validation_accuracy' in line:
      self._accuracy += (
          f', validation accuracy {line["validation_accuracy"]:.4f}')
    if self._bar is not None:
      self._metrics = ', '.join(filter(None, [self._accuracy, speed]))
      self._bar.set_postfix_str(self._metrics, refresh=False)
      self._bar.update()
      return
    parts = [f'round {line["round"]}/{self._num_rounds}']
    if 'train_loss' in line:
      parts.append(f'train loss {line["train_loss"]:.4f}')
    if 'test_accuracy' in line:
      parts.append(self._accuracy)
    parts += [speed, f'{line["seconds"]:.1f} s']
    print('  '.join(parts), flush=True)
