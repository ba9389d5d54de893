"""FedAvg: clients train on local data, the server averages their models.

McMahan et al., Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629.

    w_i <- w^t;  repeat: w_i <- w_i - lr * grad CE(F(x; w_i), y)
    w^{t+1} = sum_i |D_i| / |D| w_i

    w^t -> view.variables, w_i -> variables
"""

from collections.abc import Callable, Mapping

import jax

from moon_jax.algorithms.base import Algorithm, LossAux, Message


def fedavg() -> Algorithm:
  """Returns FedAvg. Other methods replace one or two of its functions.

  Examples:
    >>> algorithm = moon_jax.fedavg()._replace(loss=my_loss)
  """
  return Algorithm(
      init_server=lambda variables: (),
      broadcast=lambda server, receiver: server,
      init_client=lambda variables: (),
      start=lambda view: view.variables,
      frozen=lambda model, batch, view: (),
      loss=loss,
      gradient=gradient,
      transform_grads=lambda grads, view: grads,
      transform_updates=lambda updates, batch, view: updates,
      finish=lambda variables, view: (view.client, Message(variables)),
      aggregate=lambda variables, server, message, call: (
          message.mean, server, {}),
      evaluated=lambda variables, clients: jax.tree.map(
          lambda x: x[None], variables),
      local_model=lambda trained, view: trained,
  )


def centralized() -> Algorithm:
  """Returns FedAvg for one client with all data, which sends nothing."""
  return fedavg()._replace(download_bytes=lambda variables, hparams: 0,
                           upload_bytes=lambda variables, hparams: 0)


def with_terms(terms_fn: Callable, penalties: Mapping[str, str],
               hparams: Mapping[str, float]) -> Algorithm:
  """Returns FedAvg with more terms in the loss: CE + sum_j weight_j term_j.

  Args:
    terms_fn: `(outputs, batch, view) -> terms`, scalars by name, from what the
      network returns for the batch. They are recorded as metrics.
    penalties: for each term the name of the hyperparameter that weighs it.
    hparams: as in `Algorithm`.
  """
  def loss(model, variables, batch, view):
    outputs, variables = model.apply(
        variables, batch.inputs, batch.mask, train=True)
    terms = terms_fn(outputs, batch, view)
    total = model.task.loss(outputs.logits, batch)
    for name, weight in penalties.items():
      total = total + view.hparams[weight] * terms[name]
    return total, LossAux(variables, terms)

  return fedavg()._replace(loss=loss, penalties=penalties, hparams=hparams)


def loss(model, variables, batch, view):
  """Returns the mean loss of the batch: cross-entropy, or that of the task."""
  outputs, variables = model.apply(
      variables, batch.inputs, batch.mask, train=True)
  return model.task.loss(outputs.logits, batch), LossAux(variables, {})


def gradient(objective, params, batch, view):
  """Returns ((loss, aux), gradient) of the objective."""
  return jax.value_and_grad(objective, has_aux=True)(params, batch)
