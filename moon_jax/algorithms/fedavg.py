"""FedAvg: clients train on their own loss, the server averages their models.

McMahan et al., Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629.

    w_i <- w^t;  repeat: w_i <- w_i - lr * grad CE(F(x; w_i), y)
    w^{t+1} = sum_i |D_i| / |D| w_i

    w^t -> view.variables, w_i -> variables
"""

from moon_jax import losses
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import LossAux


def fedavg() -> Algorithm:
  """The algorithm whose functions the others replace one or two of."""
  return Algorithm(
      init_server=lambda variables: (),
      init_client=lambda variables: (),
      loss=loss,
      finish=lambda variables, view: (view.client, variables),
      aggregate=lambda variables, server, message: (message, server),
  )


def loss(model, variables, batch, view):
  """Mean cross-entropy of the batch."""
  del view
  outputs, variables = model.apply(
      variables, batch.images, batch.mask, train=True)
  ce_B = losses.cross_entropy_B(outputs.logits, batch.labels)
  return losses.masked_mean(ce_B, batch.mask), LossAux(variables, {})
