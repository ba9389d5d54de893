"""Trees of arrays: their bytes, and how two differ, for error messages."""

from typing import Any

import jax
import jax.numpy as jnp

_MAX_LEAVES = 4  # differing arrays that a message lists
_MAX_CHARACTERS = 200  # of a tree in a message


def bytes_of(tree: Any) -> int:
  """Returns the bytes of arrays, or of their shapes."""
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def difference(result: Any, expected: Any) -> str:
  """Returns how two trees differ, leaf by leaf; '' if they do not."""
  if lines := listed(*({
      jax.tree_util.keystr(path): _kind(x)
      for path, x in jax.tree_util.tree_leaves_with_path(tree)}
                       for tree in (result, expected))):
    return lines
  same = (jax.tree.structure(result)
          == jax.tree.structure(expected))  # type: ignore[operator]
  return '' if same else f'{shapes(result)}, expected {shapes(expected)}'


def listed(ours: dict[str, str], theirs: dict[str, str]) -> str:
  """Returns how arrays, described by name, differ; '' if they do not."""
  lines = [f'{name or "it"} is {ours.get(name, "missing")}, expected '
           f'{theirs.get(name, "nothing there")}'
           for name in [*theirs, *(n for n in ours if n not in theirs)]
           if ours.get(name) != theirs.get(name)]
  more = len(lines) - _MAX_LEAVES
  return '; '.join(lines[:_MAX_LEAVES]) + (
      f'; and {more} more differences' if more > 0 else '')


def shapes(tree: Any) -> str:
  """Returns the shapes of a tree's arrays by name, shortened to one line."""
  if jax.tree_util.all_leaves([tree]):
    return _kind(tree)
  text = str(jax.tree.map(
      lambda x: list(jnp.shape(x)) if is_array(x) else _kind(x), tree))
  return text if len(text) < _MAX_CHARACTERS else (
      f'{text[:_MAX_CHARACTERS]}...')


def is_array(x: Any) -> bool:
  """Returns whether a value is an array or a number."""
  return hasattr(x, 'dtype') or isinstance(x, bool | int | float | complex)


def _kind(x):
  """Returns the type and the shape of an array, or the type of another value.
  """
  return f'{jnp.result_type(x)}{list(jnp.shape(x))}' if is_array(x) else (
      type(x).__name__)
