"""MOON: FedAvg with a model-contrastive term in each client's loss.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021,
https://arxiv.org/abs/2103.16257, algorithm 1 and equation 4.

    l = CE(F(x; w_i), y) + mu * l_con(z, z_glob, {z_prev_1 .. z_prev_k})

    z = projection of x by w_i, z_glob by w^t, z_prev_j by w_i^{t-j}
    mu, tau -> hparams['mu'], hparams['temperature'];  k -> num_negatives

The frozen models run in eval mode. A client that has trained in fewer than k
rounds has so many negatives; with none, its contrastive loss is 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import LossAux
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
    return Memory(models, memory.num_models + 1), variables

  return fedavg()._replace(
      init_client=init_client, loss=loss, finish=finish)


def loss(model, variables, batch, view):
  """Mean of CE + mu * l_con over the batch; records l_con."""
  def frozen_projection(frozen):
    outputs, _ = model.apply(frozen, batch.images, batch.mask, train=False)
    return outputs.projection

  outputs, variables = model.apply(
      variables, batch.images, batch.mask, train=True)
  contrastive_B = losses.model_contrastive_B(
      outputs.projection,
      frozen_projection(view.variables),
      jax.vmap(frozen_projection)(view.client.models),
      view.hparams['temperature'],
      view.client.num_models)
  ce_B = losses.cross_entropy_B(outputs.logits, batch.labels)
  contrastive = losses.masked_mean(contrastive_B, batch.mask)
  total = losses.masked_mean(ce_B, batch.mask) + (
      view.hparams['mu'] * contrastive)
  return total, LossAux(variables, {'contrastive_loss': contrastive})
