"""Models in two parts: one that clients send, and one that they keep.

The methods in which a part of the network is personal share these functions,
and those of `moon_jax.models.heads`.
"""

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm, Batch, Message, View
from moon_jax.methods.fedavg import fedavg
from moon_jax.models.heads import body_and_head, layer_of, merge, Split

__all__ = ['aggregate', 'body_and_head', 'is_first', 'layer_of', 'merge',
           'with_personal_part']


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
      finish=finish, aggregate=aggregate, made_of=('with_personal_part',),
      local_model=lambda trained, view: merge(
          trained, split(view.variables)[1]),
      personal_model=lambda trained, view: trained, personal_is_current=True)


def aggregate(variables, server, message, call):
  """Replaces that part of the global model which clients have sent."""
  return merge(variables, message.mean), server, {}
