"""FedAvg: clients train on local data, the server averages their models.

McMahan et al., Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629.

    w_i <- w^t;  repeat: w_i <- w_i - lr * grad CE(F(x; w_i), y)
    w^{t+1} = sum_i |D_i| / |D| w_i

    w^t -> view.variables, w_i -> variables
"""

import jax

from moon_jax.algorithms.base import Algorithm, LossAux, Message


def fedavg() -> Algorithm:
  """Returns FedAvg. Other methods replace one or two of its functions.

  Examples:
    >>> algorithm = moon_jax.fedavg()._replace(loss=my_loss)
  """
  return Algorithm(
      init_server=lambda variables: (),
      broadcast=lambda server: server,
      init_client=lambda variables: (),
      start=lambda view: view.variables,
      frozen=lambda model, batch, view: (),
      loss=loss,
      gradient=gradient,
      transform_grads=lambda grads, view: grads,
      transform_updates=lambda updates, batch, view: updates,
      finish=lambda variables, view: (view.client, Message(variables)),
      aggregate=lambda variables, server, message: (message.mean, server),
      evaluated=lambda variables, clients: jax.tree.map(
          lambda x: x[None], variables),
      local_model=lambda trained, view: trained,
  )


def loss(model, variables, batch, view):
  """Returns the mean loss of the batch: cross-entropy, or that of the task."""
  del view
  outputs, variables = model.apply(
      variables, batch.inputs, batch.mask, train=True)
  return model.task.loss(outputs.logits, batch), LossAux(variables, {})


def gradient(objective, params, batch, view):
  """Returns ((loss, aux), gradient) of the objective."""
  del view
  return jax.value_and_grad(objective, has_aux=True)(params, batch)
