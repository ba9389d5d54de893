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
from jax import lax
import jax.numpy as jnp

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

  The Hungarian method by shortest augmenting paths, as in SciPy: Crouse, On
  implementing 2D rectangular assignment algorithms, 2016,
  https://doi.org/10.1109/TAES.2016.140952. u and v are its dual variables. It
  is in JAX so that the compiled round needs no call of the host, with which it
  could not be cached. NaN counts as 0, and numbers that would overflow as the
  largest that do not: no search would end at a distance that is not finite.
  """
  size = len(cost_NN)
  largest = jnp.finfo(cost_NN.dtype).max / (4 * size)
  cost_NN = jnp.clip(jnp.nan_to_num(cost_NN), -largest, largest)
  none_N = jnp.full(size, -1)

  def search(state):
    """Adds the column that is nearest to the rows of the tree."""
    row, _, least, in_row_N, in_col_N, near_N, path_N, u_N, v_N, row_N = state
    in_row_N = in_row_N.at[row].set(True)
    reach_N = least + cost_NN[row] - u_N[row] - v_N
    is_nearer_N = ~in_col_N & (reach_N < near_N)
    near_N = jnp.where(is_nearer_N, reach_N, near_N)
    path_N = jnp.where(is_nearer_N, row, path_N)
    col = jnp.argmin(jnp.where(in_col_N, jnp.inf, near_N))
    return (row_N[col], col, near_N[col], in_row_N, in_col_N.at[col].set(True),
            near_N, path_N, u_N, v_N, row_N)

  def assign(first, carry):
    u_N, v_N, col_N, row_N = carry
    no_N = jnp.zeros(size, bool)
    _, sink, least, in_row_N, in_col_N, near_N, path_N, *_ = lax.while_loop(
        lambda state: state[0] >= 0, search, (
            first, jnp.int32(0), jnp.zeros((), cost_NN.dtype), no_N, no_N,
            jnp.full(size, jnp.inf, cost_NN.dtype), none_N, u_N, v_N, row_N))
    u_N = jnp.where(in_row_N & (col_N >= 0), u_N + least - near_N[col_N], u_N)
    u_N = u_N.at[first].add(least)
    v_N = jnp.where(in_col_N, v_N - least + near_N, v_N)

    def augment(state):
      col, _, col_N, row_N = state
      row = path_N[col]
      return (col_N[row], row == first, col_N.at[row].set(col),
              row_N.at[col].set(row))

    *_, col_N, row_N = lax.while_loop(
        lambda state: ~state[1], augment,
        (sink, jnp.array(False), col_N, row_N))
    return u_N, v_N, col_N, row_N

  zeros_N = jnp.zeros(size, cost_NN.dtype)
  return lax.fori_loop(
      0, size, assign, (zeros_N, zeros_N, none_N, none_N))[2]
