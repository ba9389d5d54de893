"""Tells how a run goes: a bar on a terminal, a line a round elsewhere."""

import sys
from typing import Any

import tqdm

from moon_jax import hosts


class Progress:
  """Use as a context; `say` for sentences, `round` after each round."""

  def __init__(self, num_rounds: int, rounds_done: int = 0):
    self._num_rounds = num_rounds
    self._bar = None
    self._accuracy = ''
    if sys.stderr.isatty() and hosts.is_first():
      self._bar = tqdm.tqdm(
          total=num_rounds, initial=rounds_done, unit='round',
          dynamic_ncols=True)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._bar is not None:
      self._bar.close()

  def round(self, line: dict[str, Any]) -> None:
    """Shows a line of metrics.jsonl."""
    speed = f'{line["examples_per_second"]:,.0f} examples/s'
    if 'test_accuracy' in line:
      self._accuracy = f'test accuracy {line["test_accuracy"]:.4f}'
    if self._bar is not None:
      self._bar.set_postfix_str(f'{self._accuracy}, {speed}', refresh=False)
      self._bar.update()
      return
    words = [f'round {line["round"]}/{self._num_rounds}']
    if 'train_loss' in line:
      words.append(f'train loss {line["train_loss"]:.4f}')
    if 'test_accuracy' in line:
      words.append(self._accuracy)
    words += [speed, f'{line["seconds"]:.1f} s']
    print('  '.join(words), flush=True)
