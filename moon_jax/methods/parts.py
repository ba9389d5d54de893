"""Models in two parts: one that clients send, and one that they keep.

A part is a tree like the model's variables without some of its entries. The
methods in which a part of the network is personal share these functions.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm, Batch, Message, View
from moon_jax.errors import setting, UserError
from moon_jax.methods.fedavg import fedavg
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


def is_first(fraction: jax.Array, batch: Batch, view: View) -> jax.Array:
  """Returns whether a step is among the first ones of the round, bool.

  These are `fraction` of the local steps, rounded; at least one unless it is 0,
  and not all unless it is 1. If there is one step, it is a first one unless
  `fraction` is 0.
  """
  steps = jnp.float32(view.num_steps)
  num_first = jnp.minimum(
      jnp.round(fraction * steps), steps - jnp.float32(fraction < 1))
  return jnp.float32(batch.step) < jnp.maximum(
      num_first, jnp.float32(fraction > 0))


def with_personal_part(split: Split) -> Algorithm:
  """Returns FedAvg of one part of the model.

  Clients train all of it. They send the first part of `split`; the second one
  is their state, and remains as it was initially in the global model.
  """
  def finish(trained, view):
    sent, kept = split(trained)
    return kept, Message(sent)

  return fedavg()._replace(
      init_client=lambda variables: split(variables)[1],
      start=lambda view: merge(view.variables, view.client),
      finish=finish, aggregate=aggregate,
      local_model=lambda trained, view: merge(
          trained, split(view.variables)[1]),
      personal_model=lambda trained, view: trained)


def aggregate(variables, server, message, call):
  """Replaces that part of the global model which clients have sent."""
  return merge(variables, message.mean), server, {}
