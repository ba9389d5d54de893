"""FedDecorr, a user-defined loss.

Shi, Liang, Zhang, Tan and Bai, Towards Understanding and Mitigating Dimensional
Collapse in Heterogeneous Federated Learning, ICLR 2023,
https://arxiv.org/abs/2210.00226, equation 7.

    F_i = CE + beta / d^2 |K|_F^2

    K, the correlation matrix of the d features over the batch -> correlation
    beta -> hparams['beta']
"""

import jax
import jax.numpy as jnp

import moon_jax as mj

_EPSILON = 1e-8  # added to variances: a feature may be constant


def loss(model, variables, batch, view):
  """Returns cross-entropy plus the decorrelation term, and records the term."""
  outputs, variables = model.apply(
      variables, batch.inputs, batch.mask, train=True)
  ce_B = mj.losses.cross_entropy_B(outputs.logits, batch.labels)
  ce = mj.losses.masked_mean(ce_B, batch.mask)
  term = decorrelation(outputs.features, batch.mask)
  return (ce + view.hparams['beta'] * term,
          mj.LossAux(variables, {'decorrelation': term}))


def decorrelation(features_BF, mask_B):
  """Returns the mean square of the correlations between different features.

  Examples with mask 0 are padding and do not count.
  """
  mask_B1 = mask_B[:, None]
  count = jnp.maximum(jnp.sum(mask_B), 1)
  mean_1F = jnp.sum(features_BF * mask_B1, 0, keepdims=True) / count
  centered_BF = (features_BF - mean_1F) * mask_B1
  variance_1F = jnp.sum(centered_BF**2, 0, keepdims=True) / count
  z_BF = centered_BF * jax.lax.rsqrt(variance_1F + _EPSILON)
  correlation_FF = z_BF.T @ z_BF / count
  d = len(correlation_FF)
  off_diagonal_FF = correlation_FF * (1 - jnp.eye(d))
  return jnp.sum(off_diagonal_FF**2) / d**2


def feddecorr(beta: float = 0.1) -> mj.Algorithm:
  """FedAvg with this loss; the paper's beta is 0.1."""
  return mj.fedavg()._replace(loss=loss, hparams={'beta': beta})
