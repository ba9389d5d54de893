"""Weights of a sum of 1 that minimize a quadratic form, and mixtures by them.

    min_a a' P a,    a >= 0, sum_j a_j = 1

For a positive definite P the solution is x / sum(x), where x minimizes
x' P x / 2 - sum_j x_j over x >= 0: the conditions of both problems are equal up
to this factor, and those of the second one are, with a set F of free rows,

    x_j = 0 outside F,   P_FF x_F = 1,   x_F >= 0,   (P x)_j >= 1 outside F

Block principal pivoting (Judice and Pires, Computers and Operations Research
1994) moves all rows that violate a condition into or out of F until none does;
and only the last of them while that does not help, which ends for each positive
definite P. Cohorts of 20 to 300 clients take 3 to 13 solutions.
"""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms import mixing

_TINY = 1e-12  # the least variance
_TOLERANCE = 1e-6  # of the conditions, relative to the terms of their sums
_RIDGE = 1e-6  # relative to the diagonal; refinement takes it out again
_TRIES = 3  # moves of all rows without fewer violations, then of one


def weights(p_JJ: jax.Array, is_usable_J: jax.Array) -> jax.Array:
  """Returns the weights [J]; those that are not usable are 0.

  The conditions of the minimum hold to rounding error. For condition numbers of
  P, scaled to a diagonal of 1, up to 1e7 the weights are those of float64 to
  1e-4 and the form to 1e-6; at 1e9 to 0.04 and 10%, since P is in float32.

  Args:
    p_JJ: a symmetric matrix, positive definite over the usable rows.
    is_usable_J: bool. Other rows and columns have no effect.
  """
  diagonal_J = jnp.maximum(jnp.diag(p_JJ), _TINY)  # variances may be 0
  scale_J = is_usable_J.astype(p_JJ.dtype) * lax.rsqrt(
      jnp.where(is_usable_J, diagonal_J, 1))
  q_JJ = jnp.where(is_usable_J[:, None] & is_usable_J[None],
                   p_JJ * scale_J[:, None] * scale_J[None], 0)
  target_J = scale_J / jnp.maximum(jnp.max(scale_J), 1e-30)

  def step(carry):
    n, is_free_J, _, violated_J, fewest, tries = carry
    count = jnp.sum(violated_J)
    tries = jnp.where(count < fewest, _TRIES, tries - 1)
    last_J = violated_J & (jnp.cumsum(violated_J[::-1])[::-1] == 1)
    is_free_J = is_free_J ^ jnp.where(tries >= 0, violated_J, last_J)
    x_J = _solution(q_JJ, target_J, is_free_J)
    # 1 after 200 steps, so that no rounding error continues for ever.
    tolerance = _TOLERANCE * 2 ** (n / 10)
    return (n + 1, is_free_J, x_J, is_usable_J & _violated(
        q_JJ, target_J, is_free_J, x_J, tolerance),
            jnp.minimum(fewest, count), tries)

  x_J = _solution(q_JJ, target_J, is_usable_J)
  _, _, x_J, *_ = lax.while_loop(lambda carry: jnp.any(carry[3]), step, (
      jnp.int32(0), is_usable_J, x_J, _violated(
          q_JJ, target_J, is_usable_J, x_J, _TOLERANCE) & is_usable_J,
      jnp.int32(len(q_JJ) + 1), jnp.int32(_TRIES)))
  x_J = jnp.maximum(x_J, 0) * scale_J
  return x_J / jnp.maximum(jnp.sum(x_J), 1e-30)


def _solution(q_JJ, target_J, is_free_J):
  """Returns x: Q_FF x_F = target_F, and 0 for rows that are not free."""
  one_JJ = jnp.eye(len(q_JJ), dtype=q_JJ.dtype)
  part_JJ = jnp.where(is_free_J[:, None] & is_free_J[None], q_JJ, one_JJ)
  factor = lambda ridge: jnp.linalg.cholesky(part_JJ + ridge * one_JJ)
  # A matrix that is singular in float32 has a factor with a larger ridge.
  _, l_JJ = lax.while_loop(
      lambda carry: ~jnp.all(jnp.isfinite(carry[1])) & (carry[0] < 1),
      lambda carry: (10 * carry[0], factor(10 * carry[0])),
      (jnp.asarray(_RIDGE, q_JJ.dtype), factor(_RIDGE)))

  def refined(_, x_J):
    left_J = target_J - jnp.dot(q_JJ, x_J, precision='highest')
    more_J = jax.scipy.linalg.cho_solve(
        (l_JJ, True), jnp.where(is_free_J, left_J, 0))
    return jnp.where(is_free_J, x_J + more_J, 0)

  return lax.fori_loop(0, 3, refined, jnp.zeros_like(target_J))


def _violated(q_JJ, target_J, is_free_J, x_J, tolerance):
  """Returns which rows should not be free, or should be."""
  dot = lambda q_JJ, x_J: jnp.dot(q_JJ, x_J, precision='highest')
  slope_J = dot(q_JJ, x_J) - target_J
  size_J = dot(jnp.abs(q_JJ), jnp.abs(x_J)) + target_J
  return jnp.where(is_free_J, x_J < -tolerance * jnp.max(jnp.abs(x_J)),
                   slope_J < -tolerance * size_J)


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

  clean_J = jax.tree.map(
      lambda x_J: mixing.where(is_usable_J, x_J, 0), tree_J)
  return lax.map(mixture, h_JN)
