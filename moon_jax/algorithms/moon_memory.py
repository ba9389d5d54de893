"""The previous local models that a client of MOON remembers: its pool.

The paper's negatives are the last k local models. The released code appends
models until the pool has k. Then it moves models one slot down, beginning with
the newest, before it stores the new model w:

    for i = k - 2, ..., 0:  pool[i] = pool[i + 1];    pool[k - 1] = w

In this order each slot but the last gets the model that was the newest, so a
full pool has only two different models. For k <= 2 it has the last k models.
The released code stores the models of all clients in every round; here a client
stores its model when it has trained.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

FIRST_NEGATIVES = ('none', 'random')


class Memory(NamedTuple):
  """Client state: the pool of remembered models."""

  models: dict  # variables with a leading axis M = k; zeros until filled
  num_models: jax.Array  # int32 scalar, number of models written so far


def empty(k: int, variables: dict) -> Memory:
  """Returns a memory for k models like `variables`, with none of them."""
  zeros = lambda w: jnp.zeros((k, *w.shape), w.dtype)
  return Memory(jax.tree.map(zeros, variables), jnp.int32(0))


def one(k: int, variables: dict) -> Memory:
  """Returns a memory for k models, with one of them."""
  models, _ = empty(k, variables)
  return Memory(jax.tree.map(
      lambda w_M, w: w_M.at[0].set(w), models, variables), jnp.int32(1))


def newest(memory: Memory, variables: dict) -> Memory:
  """Returns the memory of the last k models: a ring buffer."""
  models, n = memory
  slot = n % _size(models)
  models = jax.tree.map(
      lambda w_M, w: w_M.at[slot].set(w), models, variables)
  return Memory(models, n + 1)


def released(memory: Memory, variables: dict) -> Memory:
  """Returns the memory after the released code has stored a model."""
  models, n = memory
  k = _size(models)
  last = jnp.minimum(n, k - 1)

  def store(w_M, w):
    is_overwritten_M = (n >= k) & (jnp.arange(len(w_M)) < last)
    axes = (-1, *[1] * w.ndim)
    w_M = jnp.where(is_overwritten_M.reshape(axes), w_M[last][None], w_M)
    return w_M.at[last].set(w)

  return Memory(jax.tree.map(store, models, variables), n + 1)


def _size(models):
  """Returns k."""
  return len(jax.tree.leaves(models)[0])


# How a pool takes a new model, by the value of --negatives_pool.
POOLS = {'newest': newest, 'released': released}
