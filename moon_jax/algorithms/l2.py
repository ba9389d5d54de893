"""The l2 penalty that MOON is compared with: |z - z_glob| for l_con.

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


def l2() -> Algorithm:
  """MOON's ablation (--algorithm=moon --contrastive=l2); FedAvg at mu 0."""
  return fedavg()._replace(
      frozen=lambda model, batch, view: moon.projection(
          model, view.variables, batch),
      loss=functools.partial(moon.loss, distance_B))


def distance_B(z_BF, batch, view):
  """|z - z_glob| of each example."""
  del view
  return losses.representation_distance_B(z_BF, batch.frozen)
