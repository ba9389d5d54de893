"""Losses of the literature, for one batch.

B batch, K classes, F features, M previous models. `mask_B` is 1 for real
examples and 0 for padding; a loss is the mean over the real examples.
"""

import functools

import jax
import jax.numpy as jnp

_EPSILON = 1e-8  # the smallest norm a cosine divides by, as in PyTorch
_MIN_DISTANCE = 1e-5  # below it representations are treated as equal


def masked_mean(values_B: jax.Array, mask_B: jax.Array) -> jax.Array:
  """Returns the mean of the values whose mask is 1, or 0 if there are none."""
  total = jnp.sum(jnp.where(mask_B > 0, values_B, 0))
  return total / jnp.maximum(jnp.sum(mask_B), 1)


def cross_entropy_B(logits_BK: jax.Array, labels_B: jax.Array) -> jax.Array:
  """Returns -log softmax(logits)[label] of each example, in nats."""
  log_p_BK = jax.nn.log_softmax(logits_BK)
  # Summing one number and zeros is exact, and its gradient needs no scatter.
  is_label_BK = labels_B[:, None] == jnp.arange(logits_BK.shape[1])[None]
  return -jnp.sum(jnp.where(is_label_BK, log_p_BK, 0), axis=1)


def distillation_B(logits_BK: jax.Array, teacher_BK: jax.Array,
                   temperature: jax.Array) -> jax.Array:
  """Returns KL(softmax(teacher / T) | softmax(logits / T)) of each example.

  Classes whose logits are -inf in both do not count.
  """
  log_p_BK = jax.nn.log_softmax(teacher_BK / temperature)
  log_q_BK = jax.nn.log_softmax(logits_BK / temperature)
  p_BK = jnp.exp(log_p_BK)
  return jnp.sum(jnp.where(p_BK > 0, p_BK * (log_p_BK - log_q_BK), 0), axis=1)


def representation_distance_B(z_BF: jax.Array,
                              z_global_BF: jax.Array) -> jax.Array:
  """Returns |z - z_glob| of each example; below 1e-5 value and gradient are 0.

  The l2 penalty to which the MOON paper compares (section 4.6). In the first
  step of a round z equals z_glob, and the direction of z - z_glob is only
  rounding error.
  """
  square_B = jnp.sum((z_BF - z_global_BF) ** 2, -1)
  is_apart_B = square_B > _MIN_DISTANCE**2
  return jnp.where(is_apart_B, jnp.sqrt(jnp.where(is_apart_B, square_B, 1)), 0)


def cosine_similarity(a_F: jax.Array, b_F: jax.Array) -> jax.Array:
  """Returns a.b / (|a| |b|) over the last axis; 0 if either vector is 0."""
  return jnp.sum(a_F * b_F, -1) / (_norm(a_F) * _norm(b_F))


def unit(a_F: jax.Array) -> jax.Array:
  """Returns a / |a| over the last axis; 0 if the vector is 0."""
  return a_F / _norm(a_F)[..., None]


def _norm(a_F):
  """Returns max(|a|, 1e-8) over the last axis, with gradient 0 below 1e-8."""
  square = jnp.sum(a_F * a_F, -1)
  return jnp.sqrt(jnp.maximum(square, _EPSILON**2))


def model_contrastive_B(z_BF: jax.Array, z_global_BF: jax.Array,
                        z_previous_MBF: jax.Array, temperature: jax.Array,
                        num_previous: jax.Array) -> jax.Array:
  """Returns MOON's model-contrastive loss of each example.

  It pulls projections towards the global model's and away from those of the
  client's previous models:

      -log( e^{sim(z,z_glob)/tau}
            / (e^{sim(z,z_glob)/tau} + sum_j e^{sim(z,z_prev_j)/tau}) )

  This equals log(1 + sum_j e^{(sim(z,z_prev_j) - sim(z,z_glob))/tau}).

  Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, equation 3,
  https://arxiv.org/abs/2103.16257.

  Args:
    z_BF: projections of the local model.
    z_global_BF: projections of the global model.
    z_previous_MBF: projections of the client's previous models; only the first
      `num_previous` count.
    temperature: tau, positive.
    num_previous: int scalar; with 0 the loss is exactly 0.
  """
  positive_B = cosine_similarity(z_BF, z_global_BF)
  # For large M a matrix product is ten times as fast as elementwise products.
  negative_MB = jnp.einsum('bf,mbf->mb', unit(z_BF), z_previous_MBF,
                           precision='highest') / _norm(z_previous_MBF)
  exists_M = jnp.arange(z_previous_MBF.shape[0]) < num_previous
  excess_MB = (negative_MB - positive_B[None]) / temperature
  excess_MB = jnp.where(exists_M[:, None], excess_MB, -jnp.inf)
  zero_1B = jnp.zeros_like(positive_B)[None]
  return jax.nn.logsumexp(jnp.concatenate([zero_1B, excess_MB]), axis=0)


def relaxed_contrastive_B(
    h_BF: jax.Array, labels_B: jax.Array, mask_B: jax.Array,
    temperature: jax.Array, threshold: jax.Array, num_negatives: int
) -> tuple[jax.Array, jax.Array]:
  """Returns the two terms of FedRCL's loss for each example.

  With the cosine similarities s_ij of example i to the others of the batch:

      log(1 + sum_k e^{(s_ik - s_ip) / tau})  and  log(1 + e^{(s_iq - 1) / tau})

  p is the least similar example of i's class, i included, and k are the most
  similar ones of other classes; q is p without i, and the second term is almost
  0 unless s_iq is at least `threshold`.

  Seo et al., Relaxed Contrastive Learning for Federated Learning, CVPR 2024,
  https://arxiv.org/abs/2401.04928, as in https://github.com/skynbe/FedRCL.

  Args:
    h_BF: representations.
    labels_B: classes.
    mask_B: 0 for padding.
    temperature: tau.
    threshold: see above.
    num_negatives: number of examples k.
  """
  size, unit_BF = len(h_BF), unit(h_BF)
  s_BB = jnp.matmul(unit_BF, unit_BF.T, precision='highest')
  is_same_BB = labels_B[:, None] == labels_B[None]
  is_real_1B = (mask_B > 0)[None]
  is_twin_BB = is_same_BB & is_real_1B & ~jnp.eye(size, dtype=bool)
  twin_B = jnp.min(jnp.where(is_twin_BB, s_BB, jnp.inf), 1)
  negative_BN, _ = jax.lax.top_k(
      jnp.where(~is_same_BB & is_real_1B, s_BB, -jnp.inf),
      min(num_negatives, size))
  excess_BN = (negative_BN - jnp.minimum(twin_B, 1)[:, None]) / temperature
  scl_B = jax.nn.logsumexp(jnp.pad(excess_BN, ((0, 0), (1, 0))), axis=1)
  is_near_B = jnp.isfinite(twin_B) & (twin_B >= threshold)
  near_B = jnp.where(is_near_B, twin_B, -1)
  return scl_B, jax.nn.softplus((near_B - 1) / temperature)


def mean_discrepancy(a_BF: jax.Array, b_BF: jax.Array,
                     mask_B: jax.Array) -> jax.Array:
  """Returns the squared maximum mean discrepancy of two sets of vectors.

  The kernel is a sum of five Gaussians, whose widths are 1/4 to 4 times the
  mean squared distance of two vectors, as in the code of FedPHP
  (https://github.com/lxcnju/FedRepo). The widths are constant in gradients.
  """
  z_AF = jnp.concatenate([a_BF, b_BF])
  sign_A = jnp.concatenate([mask_B, -mask_B])
  square_AA = jnp.sum((z_AF[:, None] - z_AF[None]) ** 2, -1)
  is_pair_AA = jnp.abs(sign_A[:, None] * sign_A[None])
  count = jnp.maximum(jnp.sum(mask_B), 1)
  width = jax.lax.stop_gradient(jnp.sum(is_pair_AA * square_AA)) / (
      2 * count * (2 * count - 1)) + _EPSILON
  kernel_AA = sum(jnp.exp(-square_AA / (width * 2.**j)) for j in range(-2, 3))
  dot = functools.partial(jnp.dot, precision='highest')
  return dot(dot(sign_A, kernel_AA), sign_A) / count**2
