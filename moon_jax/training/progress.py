"""Shows how a run goes: a bar on a terminal, one line per round elsewhere."""

import contextlib
import sys
import threading
from typing import Any

import tqdm

from moon_jax.distributed import processes

_REFRESH_SECONDS = 1.  # between two times that the bar's clock moves


class Progress:
  """Use as a context; `busy` around what may take long, `round` after each
  round."""

  def __init__(self, num_rounds: int, rounds_done: int = 0):
    self._num_rounds = num_rounds
    self._bar = None
    self._accuracy = self._shown = ''
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
  def busy(self, what: str, after: float = 10.):
    """Shows what runs within: at once behind the bar, whose clock then moves;
    elsewhere by a line once it has taken `after` seconds.

    Args:
      what: as "round 3: evaluating on 10,000 examples".
      after: seconds.
    """
    if self._bar is not None:
      self._bar.set_postfix_str(', '.join(filter(None, [self._shown, what])))
    ended = threading.Event()
    thread = threading.Thread(
        target=self._show, args=(what, after, ended), daemon=True)
    thread.start()
    try:
      yield
    finally:
      ended.set()
      thread.join()

  def _show(self, what, after, ended):
    if self._bar is None:
      if not ended.wait(after):
        print(what, flush=True)
      return
    while not ended.wait(_REFRESH_SECONDS):
      self._bar.refresh()

  def round(self, line: dict[str, Any]) -> None:
    """Shows a line of metrics.jsonl."""
    speed = f'{line["examples_per_second"]:,.0f} examples/s'
    if 'test_accuracy' in line:
      self._accuracy = f'test accuracy {line["test_accuracy"]:.4f}'
    if self._bar is not None:
      self._shown = ', '.join(filter(None, [self._accuracy, speed]))
      self._bar.set_postfix_str(self._shown, refresh=False)
      self._bar.update()
      return
    words = [f'round {line["round"]}/{self._num_rounds}']
    if 'train_loss' in line:
      words.append(f'train loss {line["train_loss"]:.4f}')
    if 'test_accuracy' in line:
      words.append(self._accuracy)
    words += [speed, f'{line["seconds"]:.1f} s']
    print('  '.join(words), flush=True)
