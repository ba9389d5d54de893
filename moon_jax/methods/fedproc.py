"""FedProc: clients pull representations towards global class prototypes.

Mu et al., FedProc: Prototypical Contrastive Federated Learning on Non-IID Data,
Future Generation Computer Systems 2023, https://arxiv.org/abs/2109.12273.

    F_i = (1 - t/T) l_gpc + t/T CE
    l_gpc = -log( e^{z.c_y} / sum_k e^{z.c_k} ),  |z| = |c_k| = 1
    c_k ~ sum of z over the examples of class k of the cohort, after training

    z -> projection of unit length, c_k -> view.server
    t -> view.round, T -> hparams['total_rounds']

As in the code of the authors, https://github.com/MuXutong/FedProc, the first
round, which has no prototypes, has CE alone; a class that no client of a cohort
has keeps its c_k, which is 0 at first. Their network feeds z to its last layer
with unit length; here the network stays as it is. Their weights for the average
are those of clients 0, 1 ... whichever take part, which is not done here.
"""

import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked, Count
from moon_jax.methods import labels, prototypes
from moon_jax.methods.fedavg import fedavg


@checked
def fedproc(total_rounds: Count = 100, head: str = 'out') -> Algorithm:
  """Returns FedProc.

  Args:
    total_rounds: T, after which the loss is cross-entropy; 100 as in the code
      of the authors.
    head: name of the network's last layer, whose input is z.
  """

  def finish(variables, view):
    def sums(batch):
      z_BF = mixing.outputs_of(view.model, variables, batch).projection
      return prototypes.batch_sums(losses.unit(z_BF), batch, view)
    return view.client, Message(variables, view.examples.sum(sums))

  return fedavg()._replace(
      init_server=lambda variables: prototypes.none(variables, head),
      loss=loss, finish=finish, reads_examples=True,
      aggregate=lambda variables, server, message, call: (
          message.mean, server.updated(message.total), {}),
      hparams={'total_rounds': total_rounds})


def loss(model, variables, batch, view):
  """Returns the sum of both losses; records l_gpc."""
  labels.require_classes(view)
  outputs, variables = model.apply(
      variables, batch.inputs, batch.mask, train=True)
  c_KF = losses.unit(view.server.mean_KF)
  similarity_BK = jnp.matmul(
      losses.unit(outputs.projection), c_KF.T, precision='highest')
  gpc = losses.masked_mean(
      losses.cross_entropy_B(similarity_BK, batch.labels), batch.mask)
  t = view.round.astype(jnp.float32)
  has_prototypes = (t > 0) & jnp.any(view.server.is_known_K)
  alpha = jnp.where(
      has_prototypes, jnp.minimum(t / view.hparams['total_rounds'], 1), 1)
  ce = model.task.loss(outputs.logits, batch)
  return (1 - alpha) * gpc + alpha * ce, LossAux(
      variables, {'prototype_loss': gpc})
