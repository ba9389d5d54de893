"""Client updates as vectors, and those of a round side by side in a matrix.

Arrays: J rows of a round, of which n are in; D numbers of an update.
"""

from typing import Any, NamedTuple

import jax
from jax import flatten_util, lax
import jax.numpy as jnp

from moon_jax import trees
from moon_jax.algorithms.base import Each, Message
from moon_jax.errors import setting, UserError

TINY = 1e-30  # a norm, to divide by


class Rows(NamedTuple):
  """The updates of a round: received ones in the order of clients, then zeros.
  """

  u_JD: jax.Array  # updates
  weight_J: jax.Array  # shares in the mean, whose sum is 1; else 0
  is_received_J: jax.Array  # bool
  client_J: jax.Array  # int32


def check(message: Message, variables: Any) -> None:
  """Checks that a message is a model."""
  if difference := trees.difference(message, Message(variables)):
    raise UserError(
        'algorithm', 'must have clients that send a model like the global one '
        'and nothing else, with robust rules, attacks on updates and '
        'compression', difference, f'Choose another, or remove '
        f'{setting("aggregation")}, {setting("attack")} and '
        f'{setting("compress")}')


def flat(tree: Any) -> jax.Array:
  """Returns all numbers of a tree [D]."""
  return flatten_util.ravel_pytree(tree)[0]


def size(tree: Any) -> int:
  """Returns how many numbers a tree has."""
  return sum(x.size for x in jax.tree.leaves(tree))


def unflat(like: Any, update_D: jax.Array) -> Any:
  """Returns the tree whose `flat` is the update, of the shapes of `like`."""
  return flatten_util.ravel_pytree(like)[1](update_D)


def moved(variables: Any, update_D: jax.Array) -> Any:
  """Returns variables + update."""
  return jax.tree.map(jnp.add, variables, unflat(variables, update_D))


def zeros(variables: Any) -> jax.Array:
  """Returns the update that changes nothing."""
  return jnp.zeros_like(flat(variables))


def in_order(each: Each, num_rows: int | None = None) -> Rows:
  """Returns the rows of `Each`: received ones by client, then zeros."""
  order_J = jnp.lexsort((each.client, ~each.is_received))[:num_rows]
  is_received_J = each.is_received[order_J]
  return Rows(jnp.where(is_received_J[:, None], each.value[order_J], 0),
              each.weight[order_J], is_received_J, each.client[order_J])


def count(is_in_J: jax.Array) -> jax.Array:
  """Returns the number of rows that are in, int32."""
  return jnp.sum(is_in_J, dtype=jnp.int32)


def weighted_sum(weight_J: jax.Array, u_JD: jax.Array) -> jax.Array:
  """Returns the weighted sum of all rows [D]."""
  return jnp.einsum('j,jd->d', weight_J, u_JD, precision='highest')


def mean_of(u_JD: jax.Array, is_in_J: jax.Array) -> jax.Array:
  """Returns the mean of the rows that are in [D]; 0 if none is."""
  total_D = jnp.sum(jnp.where(is_in_J[:, None], u_JD, 0), 0)
  return total_D / jnp.maximum(count(is_in_J), 1).astype(u_JD.dtype)


def norms(u_JD: jax.Array) -> jax.Array:
  """Returns the norm of each row [J]."""
  return jnp.sqrt(jnp.sum(jnp.square(u_JD), axis=1))


def square_distances(u_JD: jax.Array) -> jax.Array:
  """Returns |u_i - u_j|^2, float32 [J, J], exactly symmetric.

  Sums differences, since a product of matrices would lose the distances of
  honest updates if hostile ones are large.
  """
  d_JJ = lax.map(lambda u_D: jnp.sum(jnp.square(u_JD - u_D[None]), 1), u_JD)
  return (d_JJ + d_JJ.T) / 2
