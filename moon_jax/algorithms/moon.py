"""MOON: FedAvg with a model-contrastive term in each client's loss.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021,
https://arxiv.org/abs/2103.16257, algorithm 1 and equation 4.

    l = CE(F(x; w_i), y) + mu * l_con(z, z_glob, {z_prev_1 .. z_prev_k})

    z = projection of x by w_i, z_glob by w^t, z_prev_j by w_i^{t-j}
    mu, tau -> hparams['mu'], hparams['temperature'];  k -> num_negatives

The frozen models run in eval mode. A client that has trained in fewer than k
rounds has so many negatives; with none, its contrastive loss is 0.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import LossAux
from moon_jax.algorithms.base import Message
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.models.base import Variables


class Memory(NamedTuple):
  """A client's last k local models: a ring, M = k slots."""

  models: Variables  # a leading axis of M on every leaf; zeros until filled
  num_models: jax.Array  # int32 scalar, models ever remembered


def moon(num_negatives: int = 1) -> Algorithm:
  """MOON with `num_negatives` previous local models as negatives (k >= 1)."""

  def init_client(variables):
    empty = jax.tree.map(
        lambda w: jnp.zeros((num_negatives, *w.shape), w.dtype), variables)
    return Memory(empty, jnp.int32(0))

  def finish(variables, view):
    memory = view.client
    oldest = memory.num_models % num_negatives
    models = jax.tree.map(
        lambda kept, w: kept.at[oldest].set(w), memory.models, variables)
    return Memory(models, memory.num_models + 1), Message(variables)

  return fedavg()._replace(
      init_client=init_client, finish=finish,
      loss=functools.partial(_loss, contrastive_B))


def moon_l2() -> Algorithm:
  """The paper's ablation: mu * |z - z_glob| in the place of l_con."""
  def distance_B(z_BF, frozen_projection, view):
    return losses.representation_distance_B(
        z_BF, frozen_projection(view.variables))

  return fedavg()._replace(loss=functools.partial(_loss, distance_B))


def contrastive_B(z_BF, frozen_projection, view):
  """l_con of each example."""
  return losses.model_contrastive_B(
      z_BF,
      frozen_projection(view.variables),
      jax.vmap(frozen_projection)(view.client.models),
      view.hparams['temperature'],
      view.client.num_models)


def _loss(penalty_B_fn, model, variables, batch, view):
  """Mean of CE + mu * penalty over the batch; records the penalty."""
  def frozen_projection(frozen):
    outputs, _ = model.apply(frozen, batch.images, batch.mask, train=False)
    return outputs.projection

  outputs, variables = model.apply(
      variables, batch.images, batch.mask, train=True)
  ce_B = losses.cross_entropy_B(outputs.logits, batch.labels)
  penalty_B = penalty_B_fn(outputs.projection, frozen_projection, view)
  penalty = losses.masked_mean(penalty_B, batch.mask)
  total = losses.masked_mean(ce_B, batch.mask) + view.hparams['mu'] * penalty
  return total, LossAux(variables, {'contrastive_loss': penalty})
