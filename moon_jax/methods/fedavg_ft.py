"""FedAvg-FT: FedAvg; clients fine-tune the global model before evaluation.

Collins, Hassani, Mokhtari and Shakkottai, FedAvg with Fine Tuning: Local
Updates Lead to Representation Learning, NeurIPS 2022,
https://arxiv.org/abs/2205.13692. Many papers compare personal models with it.

    the model of client i: w^t, fine-tuned by SGD for E_f epochs on D_i

    E_f -> finetune_epochs
"""

from collections.abc import Callable
import functools

import jax
from jax import lax
import optax

from moon_jax import optimizers
from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, Natural
from moon_jax.methods import fedavg


@checked
def fedavg_ft(finetune_epochs: Natural = 5) -> Algorithm:
  """Returns FedAvg with fine-tuning, whose global model is that of FedAvg.

  Args:
    finetune_epochs: epochs of fine-tuning before evaluation; 0 evaluates the
      received model.
  """
  return fedavg.fedavg()._replace(
      personal_model=fine_tuning(finetune_epochs), personal_is_current=True,
      reads_examples=True)


def fine_tuning(num_epochs: int) -> Callable:
  """Returns a `personal_model` that trains what the client has received.

  All layers train by SGD with the round's learning rate, momentum and weight
  decay. Each epoch reads the examples in the same random order
  (`Examples.epoch`), class by class with --noshuffle.
  """
  def personal_model(trained, view):
    optimizer = optimizers.make(optimizers.sgd(), view.hparams)

    def step(epoch, carry, batch):
      variables, opt_state = carry
      key = jax.random.fold_in(jax.random.fold_in(view.key, epoch), batch.step)
      loss = lambda params: fedavg.loss(
          view.model.with_key(key), {**variables, 'params': params}, batch,
          view)
      grads, aux = jax.grad(loss, has_aux=True)(variables['params'])
      updates, opt_state = optimizer.update(
          grads, opt_state, variables['params'])
      params = optax.apply_updates(variables['params'], updates)
      return {**aux.variables, 'params': params}, opt_state

    return lax.fori_loop(
        0, num_epochs, lambda epoch, carry: view.examples.epoch(
            functools.partial(step, epoch), carry),
        (view.variables, optimizer.init(view.variables['params'])))[0]

  return personal_model
