"""FedASAM: FedSAM with larger perturbations of larger weights.

Caldarola, Caputo and Ciccone, Improving Generalization in Federated Learning by
Seeking Flat Minima, ECCV 2022, https://arxiv.org/abs/2203.11834.

    g = grad F_i(w_i),  T = |w_i| + eta for weights, elementwise; 1 for biases
    w_i <- w_i - lr grad F_i(w_i + rho T^2 g / |T g|)

    rho, eta -> hparams; |T g| is the norm over all parameters

As in the released code (https://github.com/debcaldarola/fedsam), T is 1 for
biases; the defaults are its settings for CIFAR-10. The recorded loss and a
model's mutable state (batch statistics) are those before the perturbation.
"""

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedsam import uphill


@checked
def fedasam(rho: NonNegative = 0.7, eta: NonNegative = 0.2) -> Algorithm:
  """Returns FedASAM.

  Args:
    rho: size of the perturbation; 0 is FedAvg.
    eta: added to |w|.
  """

  def gradient(objective, params, batch, view):
    def size(path, w):  # T
      name = jax.tree_util.keystr(path[-1:], simple=True)
      return (jnp.ones_like(w) if name in ('b', 'bias')
              else jnp.abs(w) + view.hparams['eta'])

    value, grads = fedavg().gradient(objective, params, batch, view)
    t = jax.tree_util.tree_map_with_path(size, params)
    scaled = jax.tree.map(jnp.multiply, t, grads)
    step = uphill(optax.tree.zeros_like(params), scaled, view.hparams['rho'])
    moved = jax.tree.map(lambda w, t, e: w + t * e, params, t, step)
    return value, fedavg().gradient(objective, moved, batch, view)[1]

  return fedavg()._replace(
      gradient=gradient, hparams={'rho': rho, 'eta': eta})
