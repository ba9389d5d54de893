"""Formats tables as lines of a terminal."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from moon_jax.results import read

NO_VALUE = '-'
WIDTH = 80  # columns of a terminal


def number(value: Any, name: str) -> str:
  """Formats a value of a metric."""
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if not read.is_number(value):
    return NO_VALUE
  if name == 'seconds':
    return f'{value:.1f}' if value >= 10 else f'{value:.2f}'
  if isinstance(value, int) or name in ('num_examples', 'num_heldout'):
    return f'{value:,.0f}'
  return f'{value:.4f}' if abs(value) < 1e4 else f'{value:.3g}'


def heading(name: str) -> list[str]:
  """Returns the two rows of a column's heading."""
  words = name.replace('global_heldout', 'held-out').replace(
      'cosine_with_mean', 'cosine with_mean').replace('num_', '').replace(
      'global_own', 'global own').replace('_', ' ').split()
  if len(words) < 2:
    return ['', ''.join(words)]
  return [' '.join(words[:-1]), words[-1]]


def width(columns: Mapping[str, Sequence[str]]) -> int:
  """Returns the columns that a table needs on a terminal."""
  return sum(max(map(len, [*heading(name), *cells])) + 2
             for name, cells in columns.items()) - 2


def lines_of(columns: Mapping[str, Sequence[str]]) -> list[str]:
  """Returns the lines of a table, given as columns."""
  heads = zip(*(heading(name) for name in columns))
  return [line for line in aligned([
      *map(list, heads), *map(list, zip(*columns.values()))], left=0)
          if line.strip()]


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
  """Returns rows with columns of equal width.

  Args:
    rows: of cells, each with as many.
    left: columns, from the first, whose cells begin at the left.
  """
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join(
      cell.ljust(width) if index < left else cell.rjust(width)
      for index, (cell, width) in enumerate(zip(row, widths))).rstrip()
          for row in rows]
