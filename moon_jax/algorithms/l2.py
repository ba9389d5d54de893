"""The l2 penalty that MOON's paper compares with: |z - z_glob| for l_con.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021,
https://arxiv.org/abs/2103.16257, section 4.6.

    l = CE(F(x; w_i), y) + mu * |z - z_glob|

    z, z_glob -> projections of x by w_i and w^t;  mu -> hparams['mu']
"""

import functools

from moon_jax import losses
from moon_jax.algorithms import moon
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.fedavg import fedavg


def l2(mu: float = 5.0) -> Algorithm:
  """Returns the l2 ablation of MOON with weight `mu`; 0 is FedAvg.

  On the command line it is --algorithm=moon --contrastive=l2.
  """
  return fedavg()._replace(
      frozen=lambda model, batch, view: moon.projection(
          model, view.variables, batch),
      loss=functools.partial(moon.loss, distance_B), hparams={'mu': mu},
      penalties={'contrastive_loss': 'mu'})


def distance_B(z_BF, batch, view):
  """Returns |z - z_glob| of each example, float32 [B]."""
  del view
  return losses.representation_distance_B(z_BF, batch.frozen)
