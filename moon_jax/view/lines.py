"""Formats a round as one line of text, for logs and pipes."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any


def of_round(line: Mapping[str, Any], num_rounds: int) -> str:
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


def of_runs(lines: Sequence[Mapping[str, Any]], rounds_done: int,
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
