"""The losses of the literature, each written once, for one batch.

B batch, K classes, F features, M remembered models. `mask_B` is 1 for real
examples and 0 for padding; a loss is the mean over the real ones.
"""

import jax
import jax.numpy as jnp

_EPSILON = 1e-8  # the smallest norm a cosine divides by, as in PyTorch
_COINCIDE = 1e-5  # a distance below which two representations are the same


def masked_mean(values_B: jax.Array, mask_B: jax.Array) -> jax.Array:
  """The mean of the values whose mask is 1; 0 where there are none."""
  total = jnp.sum(jnp.where(mask_B > 0, values_B, 0))
  return total / jnp.maximum(jnp.sum(mask_B), 1)


def cross_entropy_B(logits_BK: jax.Array, labels_B: jax.Array) -> jax.Array:
  """-log softmax(logits)[label] of each example, in nats."""
  log_p_BK = jax.nn.log_softmax(logits_BK)
  # A sum of one number and zeros: exact, and its gradient scatters nothing.
  is_label_BK = labels_B[:, None] == jnp.arange(logits_BK.shape[1])[None]
  return -jnp.sum(jnp.where(is_label_BK, log_p_BK, 0), axis=1)


def representation_distance_B(z_BF: jax.Array,
                              z_global_BF: jax.Array) -> jax.Array:
  """|z - z_glob| of each example, with gradient 0 where it is under 1e-5.

  The l2 penalty that the MOON paper compares with (section 4.6). At a round's
  first step z is z_glob and the direction of z - z_glob is a rounding error.
  """
  square_B = jnp.sum((z_BF - z_global_BF) ** 2, -1)
  is_apart_B = square_B > _COINCIDE**2
  return jnp.where(is_apart_B, jnp.sqrt(jnp.where(is_apart_B, square_B, 1)), 0)


def cosine_similarity(a_F: jax.Array, b_F: jax.Array) -> jax.Array:
  """a.b / (|a| |b|) over the last axis; 0 where either vector is 0."""
  return jnp.sum(a_F * b_F, -1) / (_norm(a_F) * _norm(b_F))


def _norm(a_F):
  """|a| over the last axis, at least 1e-8, with gradient 0 below that."""
  square = jnp.sum(a_F * a_F, -1)
  return jnp.sqrt(jnp.maximum(square, _EPSILON**2))


def model_contrastive_B(z_BF: jax.Array, z_global_BF: jax.Array,
                        z_previous_MBF: jax.Array, temperature: jax.Array,
                        num_previous: jax.Array) -> jax.Array:
  """MOON's loss of each example: close to global, far from previous models.

      -log( e^{sim(z,z_glob)/tau}
            / (e^{sim(z,z_glob)/tau} + sum_j e^{sim(z,z_prev_j)/tau}) )

  which is log(1 + sum_j e^{(sim(z,z_prev_j) - sim(z,z_glob))/tau}).

  Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, equation 3,
  https://arxiv.org/abs/2103.16257.

  Args:
    z_BF: projections of the model in training.
    z_global_BF: projections of the round's global model.
    z_previous_MBF: projections of the client's previous models, of which the
      first `num_previous` exist.
    temperature: tau, above 0.
    num_previous: int scalar; with 0 the loss is exactly 0.
  """
  positive_B = cosine_similarity(z_BF, z_global_BF)
  # As a matrix product, which is ten times faster where M is large.
  negative_MB = jnp.einsum(
      'bf,mbf->mb', z_BF / _norm(z_BF)[:, None], z_previous_MBF,
      precision=jax.lax.Precision.HIGHEST) / _norm(z_previous_MBF)
  exists_M = jnp.arange(z_previous_MBF.shape[0]) < num_previous
  excess_MB = (negative_MB - positive_B[None]) / temperature
  excess_MB = jnp.where(exists_M[:, None], excess_MB, -jnp.inf)
  zero_1B = jnp.zeros_like(positive_B)[None]
  return jax.nn.logsumexp(jnp.concatenate([zero_1B, excess_MB]), axis=0)
