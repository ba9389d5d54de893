"""Matched averaging: models whose hidden units are brought into one order.

Wang et al., Federated Learning with Matched Averaging (FedMA), ICLR 2020,
https://arxiv.org/abs/2002.06440, equation 2, for models of one width:

    Pi_j = argmin over permutations of sum_l |W_jl Pi - W_l|^2
    w^{t+1} = sum_j p_j Pi_j w_j

W_l are the incoming weights and the bias of unit l of a layer, of the reference
model, and W_jl those of client j. Layers follow each other from the inputs on:
the incoming weights of a layer are compared after the units of layers before it
have changed places.

Arrays: J models, N units of a layer.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from moon_jax.models import hidden
from moon_jax.models.hidden import Axes


def matched(models_J: Any, reference: Any, layers: str = ''
            ) -> tuple[Any, dict[str, jax.Array]]:
  """Returns the models with their units in the order of those of a reference.

  Also returns the orders: for each hidden layer the former place of each unit,
  int32 [J, N].

  Args:
    models_J: models like the reference, [J, ...].
    reference: a model.
    layers: see `moon_jax.models.hidden.chain`.
  """
  axes, counts = hidden.chain(reference, layers)
  expected, orders_J = hidden.arrays_of(reference), {}
  for layer in counts:
    similarity_JNN = jax.vmap(lambda model, layer=layer: _similarity(
        expected, hidden.arrays_of(model), axes, layer))(models_J)
    orders_J[layer] = jax.vmap(assignment)(-similarity_JNN)
    models_J = jax.vmap(lambda model, order_N, layer=layer: permuted(
        model, axes, layer, order_N))(models_J, orders_J[layer])
  return models_J, orders_J


def permuted(model: Any, axes: Axes, layer: str, order_N: jax.Array) -> Any:
  """Returns the model whose unit n of a layer was unit order_N[n]."""
  def moved(keys, x):
    for axis, name in enumerate(axes[hidden.path_of(keys)]):
      if name == layer:
        starts = jnp.arange(0, x.shape[axis], len(order_N))
        x = jnp.take(x, (starts[:, None] + order_N[None]).ravel(), axis)
    return x

  return jax.tree_util.tree_map_with_path(moved, model)


def _similarity(reference, model, axes, layer):
  """Returns the products of incoming weights, [N of the reference, N].

  The assignment that maximizes their sum minimizes that of squared distances.
  """
  return sum(
      jnp.einsum('kn,km->nm', *[
          arrays[path].reshape(-1, arrays[path].shape[-1])
          for arrays in (reference, model)], precision='highest')
      for path, names in axes.items() if names[-1] == layer)


def assignment(cost_NN: jax.Array) -> jax.Array:
  """Returns the column of each row that minimizes the sum of costs, int32 [N].

  It is in JAX so that the compiled round needs no call of the host, with which
  it could not be cached. NaN counts as 0, and numbers that would overflow as
  the largest that do not: no search would end at a distance that is not finite.
  """
  largest = jnp.finfo(cost_NN.dtype).max / (4 * len(cost_NN))
  row_N, _ = optax.assignment.hungarian_algorithm(
      jnp.clip(jnp.nan_to_num(cost_NN), -largest, largest))
  return jnp.argsort(row_N)
