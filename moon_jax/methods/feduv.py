"""FedUV: uniform representations, and class probabilities that vary.

Son, Kim, Chung, Lee and Yoon, FedUV: Uniformity and Variance for Heterogeneous
Federated Learning, CVPR 2024, https://arxiv.org/abs/2402.18372.

    F_i = CE + lam L_V + mu L_U
    L_V = 1/K sum_k max(0, gamma - std_b(p_bk)),    p = softmax(logits)
    L_U = mean over pairs a < b of exp(-|z_a - z_b|^2 / sigma^2)

    lam, mu -> hparams['std_coeff'], hparams['unif_coeff']
    z -> Outputs.projection, the input of the last layer

One-hot labels of K examples, one of each class, have the standard deviation
gamma = 1 / sqrt(K). As in the released code, https://github.com/sonhamin/FedUV,
sigma^2 is the median of those squared distances of the batch that are not 0
(the lower one of two), which has a gradient, and standard deviations divide by
B - 1. A batch of one example has no L_V and L_U; there the released code has
NaN.
"""

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods import labels
from moon_jax.methods.fedavg import with_terms


@checked
def feduv(std_coeff: NonNegative = 2.5,
          unif_coeff: NonNegative = 0.5) -> Algorithm:
  """Returns FedUV; it is FedAvg if both weights are 0.

  Args:
    std_coeff: lam, the weight of the variance of probabilities.
    unif_coeff: mu, the weight of the uniformity of representations.
  """

  def terms(outputs, batch, view):
    labels.require_classes(view)
    return {
        'variance': variance_loss(jax.nn.softmax(outputs.logits), batch.mask),
        'uniformity': uniformity_loss(outputs.projection, batch.mask)}

  return with_terms(
      terms, {'variance': 'std_coeff', 'uniformity': 'unif_coeff'},
      {'std_coeff': std_coeff, 'unif_coeff': unif_coeff})


def variance_loss(p_BK, mask_B):
  """Returns L_V: what deviations over the batch lack to 1 / sqrt(K)."""
  mask_B1, count = mask_B[:, None], jnp.sum(mask_B)
  mean_1K = jnp.sum(p_BK * mask_B1, 0, keepdims=True) / jnp.maximum(count, 1)
  square_K = jnp.sum((p_BK - mean_1K) ** 2 * mask_B1, 0)
  std_K = _sqrt(square_K / jnp.maximum(count - 1, 1))
  lack = jnp.mean(jnp.maximum(p_BK.shape[1] ** -.5 - std_K, 0))
  return jnp.where(count > 1, lack, 0)


def uniformity_loss(z_BF, mask_B):
  """Returns L_U: the mean of a Gaussian kernel over pairs of examples."""
  is_pair_BB = jnp.triu(mask_B[:, None] * mask_B[None], 1) > 0
  square_BB = jnp.sum((z_BF[:, None] - z_BF[None]) ** 2, -1)
  is_apart_BB = is_pair_BB & (square_BB > 0)
  in_order = jnp.sort(jnp.where(is_apart_BB, square_BB, jnp.inf), axis=None)
  median = in_order[jnp.maximum(jnp.sum(is_apart_BB) - 1, 0) // 2]
  has_median = jnp.isfinite(median)
  kernel_BB = jnp.exp(-square_BB / jnp.where(has_median, median, 1))
  total = jnp.sum(jnp.where(is_pair_BB, kernel_BB, 0))
  return total / jnp.maximum(jnp.sum(jnp.float32(is_pair_BB)), 1)


def _sqrt(x):
  """Returns the square root; its gradient at 0 is 0."""
  return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)
