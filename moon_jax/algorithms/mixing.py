"""Parts of methods that mix single models, at the server or at the client.

`carrying` lets `finish` know what `start` has found: it travels with what the
client trains, as the collection 'carried' beside 'params'.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import (
  Algorithm,
  Batch,
  Each,
  Examples,
  Trained,
  View,
)
from moon_jax.models.base import Model, Variables


def copies(variables: Variables, count: int) -> Variables:
  """Returns `count` copies of a model, side by side."""
  return jax.tree.map(
      lambda x: jnp.broadcast_to(x[None], (count, *x.shape)), variables)


def stored(tree_C: Any, each: Each, tree_J: Any, index_J: jax.Array) -> Any:
  """Returns rows [C, ...] of which those at `index_J` are the received ones."""
  def store(x_C, x_J):
    at_J = jnp.where(each.is_received, index_J, len(x_C))
    return x_C.at[at_J].set(x_J, mode='drop')

  return jax.tree.map(store, tree_C, tree_J)


def at(tree_C: Any, index: Any) -> Any:
  """Returns the rows at an index, or at an array of them."""
  return jax.tree.map(lambda x_C: x_C[index], tree_C)


def square_distance(v: Variables, w: Variables) -> jax.Array:
  """Returns |v - w|^2 of the parameters."""
  return optax.tree.norm(
      optax.tree.sub(v['params'], w['params']), squared=True)


def distance(v: Variables, w: Variables, order: int = 2) -> jax.Array:
  """Returns the l1 or l2 norm (`order`) of v - w, of the parameters."""
  return optax.tree.norm(optax.tree.sub(v['params'], w['params']), order)


def carry(variables: Variables, found: Any) -> Trained:
  """Returns what a client trains from this model, with what `start` found."""
  return {**variables, 'carried': found}


def model_of(trained: Trained, view: Any = None) -> Variables:
  """Returns the model of `carry`."""
  del view
  return {name: x for name, x in trained.items() if name != 'carried'}


def carrying(algorithm: Algorithm) -> Algorithm:
  """Returns `algorithm`, whose clients train the results of `carry`.

  The loss sees the model alone; `finish` sees all.
  """
  def loss(model, trained, batch, view):
    value, aux = algorithm.loss(model, model_of(trained), batch, view)
    return value, aux._replace(
        variables=carry(aux.variables, trained['carried']))

  return algorithm._replace(
      loss=loss, local_model=model_of, personal_model=model_of)


def loss_of(model: Model, variables: Variables, batch: Batch) -> jax.Array:
  """Returns the mean loss of a batch in evaluation mode."""
  outputs, _ = model.apply(variables, batch.inputs, batch.mask, train=False)
  return model.task.loss(outputs.logits, batch)


def loss_of_all(model: Model, variables: Variables, examples: Examples,
                view: View) -> jax.Array:
  """Returns the mean loss of the client's training examples."""
  total = examples.sum(lambda batch: jnp.sum(batch.mask) * loss_of(
      model, variables, batch))
  return total / jnp.float32(view.num_examples)


def parts(batch: Batch, size: int) -> Batch:
  """Returns parts of `size` examples of a batch, side by side, padded."""
  num_parts = -(-len(batch.mask) // size)

  def divided(x_B):
    padding = [(0, num_parts * size - len(x_B))] + [(0, 0)] * (x_B.ndim - 1)
    return jnp.pad(x_B, padding).reshape(num_parts, size, *x_B.shape[1:])

  inputs, labels, mask = jax.tree.map(
      divided, (batch.inputs, batch.labels, batch.mask))
  return Batch(inputs, labels, mask, step=jnp.arange(num_parts))
