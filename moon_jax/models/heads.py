"""Parts of a model: trees like its variables without some of the entries."""

from collections.abc import Callable
from typing import Any

from moon_jax.errors import setting, UserError
from moon_jax.models.base import Variables

Split = Callable[[Variables], tuple[Variables, Variables]]


def body_and_head(head: str) -> Split:
  """Returns the function that splits a model into its body and its head.

  The statistics of a layer (batch norm) are in the same part as the layer.

  Args:
    head: names of the layers of the head, separated by spaces, such as "out" or
      "proj1 proj2 out" in the networks of moon_jax.

  Raises:
    UserError: when it splits a model without these layers, or without others.
  """
  names = frozenset(head.split())

  def split(variables):
    layers = {layer_of(name) for name in variables['params']}
    if not names or not names < layers:
      raise UserError(
          'head', 'must name some layers of the network, which are '
          + ', '.join(sorted(layers)), repr(head),
          f'{setting("head")}=NAME names one')
    return tuple({
        collection: {name: x for name, x in entries.items()
                     if (layer_of(name) in names) == is_head}
        for collection, entries in variables.items()}
                 for is_head in (False, True))

  return split


def layer_of(name: str) -> str:
  """Returns the layer of an entry of `params`: "out" of NNX's "out/kernel"."""
  return name.rpartition('/')[0] or name


def merge(*parts: dict[str, Any]) -> dict[str, Any]:
  """Returns one tree with the entries of all; the last one wins."""
  merged: dict[str, Any] = {}
  for part in parts:
    for name, tree in part.items():
      both = isinstance(tree, dict) and name in merged
      merged[name] = merge(merged[name], tree) if both else tree
  return merged
