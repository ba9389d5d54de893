"""Weights of a sum of 1 that minimize a quadratic form, and mixtures by them.

    min_a a' P a,    a >= 0, sum_j a_j = 1

For a positive definite P the solution is x / sum(x), where x minimizes
x' P x / 2 - sum_j x_j over x >= 0: the conditions of both problems are equal up
to this factor. The second problem keeps its form if P is scaled to a diagonal
of 1, and its projection is max(x, 0). Accelerated projected gradient steps
(Nesterov 1983; restarts of O'Donoghue and Candes 2015) converge linearly: to
rounding error, in the number of steps taken here.
"""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

_NUM_STEPS = 2000
_TINY = 1e-12  # the least variance


def weights(p_JJ: jax.Array, is_usable_J: jax.Array) -> jax.Array:
  """Returns the weights [J]; those that are not usable are 0.

  Args:
    p_JJ: a symmetric matrix, positive definite over the usable rows.
    is_usable_J: bool. Other rows and columns have no effect.
  """
  usable_J = is_usable_J.astype(p_JJ.dtype)
  diagonal_J = jnp.maximum(jnp.diag(p_JJ), 1e-12)  # variances may be 0
  scale_J = usable_J * lax.rsqrt(jnp.where(is_usable_J, diagonal_J, 1))
  q_JJ = jnp.where(is_usable_J[:, None] & is_usable_J[None],
                   p_JJ * scale_J[:, None] * scale_J[None], 0)
  target_J = scale_J / jnp.maximum(jnp.max(scale_J), 1e-30)
  rate = 1 / jnp.maximum(jnp.max(jnp.sum(jnp.abs(q_JJ), 1)), 1)

  def step(_, carry):
    y_J, ahead_J, t = carry
    gradient_J = jnp.dot(q_JJ, ahead_J, precision='highest') - target_J
    new_J = usable_J * jnp.maximum(ahead_J - rate * gradient_J, 0)
    restarts = jnp.sum((ahead_J - new_J) * (new_J - y_J)) > 0
    t = jnp.where(restarts, 1, t)
    next_t = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
    return new_J, new_J + (t - 1) / next_t * (new_J - y_J), next_t

  y_J, _, _ = lax.fori_loop(
      0, _NUM_STEPS, step, (target_J, target_J, jnp.ones((), p_JJ.dtype)))
  x_J = y_J * scale_J
  return x_J / jnp.maximum(jnp.sum(x_J), 1e-30)


def mixtures(tree_J: Any, h_J: jax.Array, variance_J: jax.Array,
             is_usable_J: jax.Array) -> Any:
  """Returns mixtures [J, ...] of trees by the weights a_i for each row i.

  These minimize sum_j a_j^2 variance_j + |sum_j a_j (h_i - h_j)|^2. Rows that
  are not usable may have any values; they have no effect on others. A variance
  of 0, of a client with one example, counts as tiny: then its own row remains.
  """
  h_JN = h_J.reshape(len(h_J), -1)
  variance_J = jnp.maximum(variance_J, _TINY)

  def mixture(h_N):
    apart_JN = jnp.where(is_usable_J[:, None], h_N[None] - h_JN, 0)
    gram_JJ = jnp.dot(apart_JN, apart_JN.T, precision='highest')
    a_J = weights(jnp.diag(variance_J) + gram_JJ, is_usable_J)
    return jax.tree.map(lambda x_J: jnp.einsum(
        'j,j...->...', a_J, x_J, precision='highest'), clean_J)

  clean_J = jax.tree.map(lambda x_J: jnp.where(is_usable_J.reshape(
      -1, *[1] * (x_J.ndim - 1)), x_J, 0), tree_J)
  return lax.map(mixture, h_JN)
