"""FedDecorr: a loss against the dimensional collapse of features.

Shi et al., Towards Understanding and Mitigating Dimensional Collapse in
Heterogeneous Federated Learning, ICLR 2023, https://arxiv.org/abs/2210.00226.

    F_i = CE + beta / d^2 |K|_F^2

    K, the correlation matrix of the d features before the projection head, over
    a batch; its diagonal is constant, and left out here and in the code
    beta -> hparams['decorr_weight']

The code of the authors, https://github.com/bytedance/FedDecorr, has about N
times this term for N examples in a batch, so the same beta, 0.1, weighs more.
form="released" computes it, with Z the features of mean 0 and unbiased variance
1:

    beta / (N d (d - 1)) sum_{j != k} (Z^T Z)_{jk}^2
"""

from typing import Literal

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods.fedavg import with_terms

_EPSILON = 1e-8  # added to variances: a feature may be constant


@checked
def feddecorr(decorr_weight: NonNegative = 0.1,
              form: Literal['paper', 'released'] = 'paper') -> Algorithm:
  """Returns FedDecorr.

  Args:
    decorr_weight: the paper's beta; 0 is FedAvg.
    form: "paper", or "released" for the term of the code of the authors.
  """
  return with_terms(
      lambda outputs, batch, view: {'decorrelation': decorrelation(
          outputs.features, batch.mask, form)},
      {'decorrelation': 'decorr_weight'}, {'decorr_weight': decorr_weight})


def decorrelation(features_BF, mask_B, form):
  """Returns the term of the loss; examples with mask 0 do not count."""
  mask_B1, n, d = mask_B[:, None], jnp.sum(mask_B), features_BF.shape[1]
  mean_F = jnp.sum(features_BF * mask_B1, 0) / jnp.maximum(n, 1)
  centered_BF = (features_BF - mean_F[None]) * mask_B1
  freedom = n - 1 if form == 'released' else n
  variance_F = jnp.sum(centered_BF**2, 0) / jnp.maximum(freedom, 1)
  z_BF = centered_BF * jax.lax.rsqrt(variance_F + _EPSILON)[None]
  sums_FF = jnp.dot(z_BF.T, z_BF, precision='highest') * (1 - jnp.eye(d))
  if form == 'released':
    return jnp.sum(sums_FF**2) / (jnp.maximum(n, 1) * max(d * (d - 1), 1))
  return jnp.sum((sums_FF / jnp.maximum(n, 1))**2) / d**2
