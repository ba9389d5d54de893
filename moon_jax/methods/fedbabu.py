"""FedBABU: only the body is trained; clients fine-tune before evaluation.

Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image
Classification, ICLR 2022, https://arxiv.org/abs/2106.06042, algorithm 1.

    b_i <- b^t;  repeat: b_i <- b_i - lr grad_b F_i(b_i, h)
    b^{t+1} = sum_i |D_i| / |D| b_i
    the model of client i: (b^t, h), fine-tuned by SGD for E_f epochs on D_i

    b, the body -> all layers but those of `head`
    h, the initial head -> those of `head`
    E_f -> finetune_epochs

A client fine-tunes the model that it has received in the round, body and head,
with the round's learning rate and momentum, as the released code does
(https://github.com/jhoon-oh/FedBABU, analysis.ipynb) with its last learning
rate. That code averages uniformly (--weighting=uniform) and shuffles examples.
Here they keep the order of the client's list (`Examples.epoch`): random with
the partitions iid and dirichlet, class by class with shards or --noshuffle.
"""

import functools

import jax
from jax import lax
import optax

from moon_jax import optimizers
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Natural
from moon_jax.methods import fedavg as fedavg_lib
from moon_jax.methods import parts


@checked
def fedbabu(head: str = 'out', finetune_epochs: Natural = 5) -> Algorithm:
  """Returns FedBABU.

  Args:
    head: names of the layers that never train, separated by spaces.
    finetune_epochs: epochs of fine-tuning before evaluation; 0 evaluates the
      received model.
  """
  split, names = parts.body_and_head(head), head.split()

  def personal_model(trained, view):
    optimizer = optimizers.make(optimizers.sgd(), view.hparams)

    def step(epoch, carry, batch):
      variables, opt_state = carry
      key = jax.random.fold_in(jax.random.fold_in(view.key, epoch), batch.step)
      loss = lambda params: fedavg_lib.loss(
          view.model.with_key(key), {**variables, 'params': params}, batch,
          view)
      grads, aux = jax.grad(loss, has_aux=True)(variables['params'])
      updates, opt_state = optimizer.update(
          grads, opt_state, variables['params'])
      params = optax.apply_updates(variables['params'], updates)
      return {**aux.variables, 'params': params}, opt_state

    return lax.fori_loop(
        0, finetune_epochs, lambda epoch, carry: view.examples.epoch(
            functools.partial(step, epoch), carry),
        (view.variables, optimizer.init(view.variables['params'])))[0]

  return fedavg_lib.fedavg()._replace(
      trains=lambda params, batch, view: {
          name: parts.layer_of(name) not in names for name in params},
      finish=lambda trained, view: (view.client, Message(split(trained)[0])),
      aggregate=parts.aggregate, personal_model=personal_model,
      reads_examples=True)
