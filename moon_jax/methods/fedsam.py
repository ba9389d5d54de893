"""FedSAM: clients minimize the loss of weights that are perturbed uphill.

Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML
2022, https://arxiv.org/abs/2206.02618.

    g = grad F_i(w_i)
    w_i <- w_i - lr grad F_i(w_i + rho g / |g|)

    rho -> hparams['rho']; |g| is the norm over all parameters

No code of Qu et al. is known. Caldarola, Caputo and Ciccone (ECCV 2022,
https://arxiv.org/abs/2203.11834) have the same method, with code:
https://github.com/debcaldarola/fedsam; the default is theirs for CIFAR-10. The
recorded loss and a model's mutable state (batch statistics) are those before
the perturbation.
"""

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods.fedavg import fedavg

_EPSILON = 1e-16  # the smallest norm, as in the code of Caldarola et al.


@checked
def fedsam(rho: NonNegative = 0.1) -> Algorithm:
  """Returns FedSAM.

  Args:
    rho: norm of the perturbation of weights; 0 is FedAvg.
  """

  def gradient(objective, params, batch, view):
    value, grads = fedavg().gradient(objective, params, batch, view)
    moved = uphill(params, grads, view.hparams['rho'])
    return value, fedavg().gradient(objective, moved, batch, view)[1]

  return fedavg()._replace(gradient=gradient, hparams={'rho': rho})


def uphill(params, grads, rho):
  """Returns w + rho g / |g|."""
  step = rho / jnp.maximum(optax.tree.norm(grads), _EPSILON)
  return jax.tree.map(lambda w, g: w + step * g, params, grads)
