"""FedProx: FedAvg with a pull towards the global model in each client's loss.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020,
https://arxiv.org/abs/1812.06127, equation 2.

    F_i(w) + mu/2 |w - w^t|^2

    mu -> hparams['mu'], w^t -> view.variables
"""

import optax

from moon_jax.algorithms import fedavg
from moon_jax.algorithms.base import Algorithm


def fedprox(mu: float = 0.01) -> Algorithm:
  """Returns FedProx with weight `mu` of the proximal term; 0 is FedAvg."""
  return fedavg.fedavg()._replace(loss=loss, hparams={'mu': mu})


def loss(model, variables, batch, view):
  """Returns the mean cross-entropy of the batch plus the proximal term."""
  ce, aux = fedavg.loss(model, variables, batch, view)
  moved = optax.tree.sub(variables['params'], view.variables['params'])
  proximal = optax.tree.norm(moved, squared=True) / 2
  return ce + view.hparams['mu'] * proximal, aux
