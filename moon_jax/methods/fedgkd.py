"""FedGKD: an average of the last global models teaches each client.

Yao et al., FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge
Distillation, IEEE Transactions on Computers 2023,
https://arxiv.org/abs/2107.00051.

    F_i = CE + gamma/2 KL( p(x; v^t) | p(x; w) )
    v^t = mean of w^t, w^{t-1} ... w^{t-M+1}

    p(x; v^t) -> softmax of batch.frozen; gamma -> hparams['gamma']
    w^t -> view.variables; the sum of the models before it (no sum for M = 1),
    and the rounds in which the server received messages -> view.server
    M -> buffer

As in the code of the authors, https://github.com/CGCL-codes/FedGKD, the initial
model is never a teacher, so that the first round is that of FedAvg; and the
loss is tau^2 times that of softmax(logits / tau), with tau = 1. Clients there
have equal weights, --weighting=uniform; and the teacher for M = 1 is the first
model that a worker received, which is not done here.
"""

import jax
import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, Count, NonNegative, Positive
from moon_jax.methods import labels
from moon_jax.methods.fedavg import with_terms


@checked
def fedgkd(gamma: NonNegative = 0.2, buffer: Count = 5,
           tau: Positive = 1.0) -> Algorithm:
  """Returns FedGKD.

  Args:
    gamma: twice the weight of the distillation loss; 0 is FedAvg.
    buffer: M, the number of global models that teach.
    tau: temperature.
  """
  size = buffer - 1  # models before w^t

  def init_server(variables):
    return jax.tree.map(
        lambda w: jnp.zeros((size, *w.shape), w.dtype), variables), jnp.int32(0)

  def aggregate(variables, server, message, call):
    """Stores w^t, except w^0, in a ring buffer."""
    models, t = server
    is_slot_M = (jnp.arange(size) == (t - 1) % max(size, 1)) & (t > 0)
    models = jax.tree.map(
        lambda w_M, w: mixing.where(is_slot_M, w[None], w_M),
        models, variables)
    return message.mean, (models, t + 1), {}

  def teacher_logits(model, batch, view):
    totals, t = view.server
    num_models = 1 + jnp.clip(t - 1, 0, size)
    mean = lambda w, *totals: (w + sum(totals)) / num_models.astype(w.dtype)
    teacher = jax.tree.map(mean, view.variables, *totals)
    return mixing.outputs_of(model, teacher, batch).logits

  def terms(outputs, batch, view):
    labels.require_classes(view)
    tau = view.hparams['tau']
    kl_B = tau**2 * losses.distillation_B(outputs.logits, batch.frozen, tau)
    kl = jnp.where(view.server[1] > 0, losses.masked_mean(kl_B, batch.mask), 0)
    return {'distillation': kl / 2}

  return with_terms(
      terms, {'distillation': 'gamma'}, {'gamma': gamma, 'tau': tau})._replace(
          init_server=init_server, aggregate=aggregate, frozen=teacher_logits,
          broadcast=lambda server, receiver: (
              [jax.tree.map(lambda w_M: w_M.sum(0), server[0])] * bool(size),
              server[1]))
