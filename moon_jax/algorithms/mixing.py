"""Parts of methods that mix single models, at the server or at the client.

`carrying` lets `finish` know a result of `start`: it travels with what the
client trains, as the collection 'carried' beside 'params'.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm, Batch, Each, View
from moon_jax.errors import require
from moon_jax.models.base import Model, Outputs, Variables


def copies(variables: Variables, count: int) -> Variables:
  """Returns `count` copies of a model, side by side."""
  return jax.tree.map(
      lambda x: jnp.broadcast_to(x[None], (count, *x.shape)), variables)


def stored(tree_C: Any, each: Each, tree_J: Any, index_J: jax.Array) -> Any:
  """Returns rows [C, ...], with the received rows at `index_J` replaced."""
  def store(x_C, x_J):
    at_J = jnp.where(each.is_received, index_J, len(x_C))
    return x_C.at[at_J].set(x_J, mode='drop')

  return jax.tree.map(store, tree_C, tree_J)


def where(condition: jax.Array, x: jax.Array, y: Any) -> jax.Array:
  """Returns x or y as a condition on the first axes selects."""
  return jnp.where(condition.reshape(
      *condition.shape, *(1,) * (x.ndim - condition.ndim)), x, y)


def at(tree_C: Any, index: Any) -> Any:
  """Returns the rows at an index, or at an array of them."""
  return jax.tree.map(lambda x_C: x_C[index], tree_C)


def layers(variables: Variables, names: str) -> dict[str, Any]:
  """Returns the parameters of layers, whose names are separated by spaces."""
  params, chosen = variables['params'], names.split()
  require(chosen and {*chosen} <= params.keys(), 'head', 'must name layers of '
          'the network, which are ' + ', '.join(sorted(params)), repr(names))
  return {name: params[name] for name in chosen}


def square_distance(v: Variables, w: Variables) -> jax.Array:
  """Returns |v - w|^2 of the parameters."""
  return distance(v, w, squared=True)


def distance(v: Variables, w: Variables, **norm: Any) -> jax.Array:
  """Returns the norm of v - w, of the parameters; see `optax.tree.norm`."""
  return optax.tree.norm(optax.tree.sub(v['params'], w['params']), **norm)


def carry(variables: Variables, result: Any) -> Variables:
  """Returns what a client trains from this model, with a result of `start`."""
  return {**variables, 'carried': result}


def model_of(trained: Variables, view: Any = None) -> Variables:
  """Returns the model of `carry`."""
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


def outputs_of(model: Model, variables: Variables, batch: Batch) -> Outputs:
  """Returns what a network computes of a batch in evaluation mode."""
  return model.apply(variables, batch.inputs, batch.mask, train=False)[0]


def loss_of(model: Model, variables: Variables, batch: Batch) -> jax.Array:
  """Returns the mean loss of a batch in evaluation mode."""
  return model.task.loss(outputs_of(model, variables, batch).logits, batch)


def loss_of_all(variables: Variables, view: View) -> jax.Array:
  """Returns the mean loss of the client's training examples."""
  return mean_of_all(view, lambda batch: loss_of(view.model, variables, batch))


def mean_of_all(view: View, mean_of_batch: Callable[[Batch], Any]) -> Any:
  """Returns the mean over the client's predictions, from means of batches.

  Args:
    view: of the client, with the network, whose task counts predictions.
    mean_of_batch: returns a tree of means over the predictions of a batch.
  """
  def total(batch):
    count = view.model.task.count(batch)
    return optax.tree.scale(count, mean_of_batch(batch)), count

  summed, count = view.examples.sum(total)
  return optax.tree.scale(1 / jnp.maximum(count, 1), summed)


def parts(batch: Batch, size: int) -> Batch:
  """Returns parts of `size` examples of a batch, side by side, padded."""
  num_parts = -(-len(batch.mask) // size)

  def divided(x_B):
    padding = [(0, num_parts * size - len(x_B))] + [(0, 0)] * (x_B.ndim - 1)
    return jnp.pad(x_B, padding).reshape(num_parts, size, *x_B.shape[1:])

  inputs, labels, mask = jax.tree.map(
      divided, (batch.inputs, batch.labels, batch.mask))
  return Batch(inputs, labels, mask, step=jnp.arange(num_parts))


def chosen(affinity_CC: jax.Array, is_free_CC: jax.Array, chance: jax.Array,
           count: int, key: jax.Array) -> jax.Array:
  """Returns `count` different clients for each client, int32 [C, M].

  Each is the free one of the largest affinity or, with probability `chance`, a
  random one; -1 where none is free.
  """
  def row(affinity_C, is_free_C, key):
    ties, order, explores = jax.random.split(key, 3)
    rank_C = jnp.argsort(jnp.lexsort((
        jax.random.uniform(ties, affinity_C.shape), affinity_C)))
    random_C = jax.random.permutation(order, len(affinity_C))

    def choose(is_free_C, explores):
      score_C = jnp.where(explores, random_C, rank_C)
      best = jnp.argmax(jnp.where(is_free_C, score_C, -1))
      return is_free_C.at[best].set(False), jnp.where(is_free_C[best], best, -1)

    return lax.scan(
        choose, is_free_C, jax.random.uniform(explores, (count,)) < chance)[1]

  keys_C = jax.random.split(key, len(affinity_CC))
  return jax.vmap(row)(affinity_CC, is_free_CC, keys_C).astype(jnp.int32)
