"""Per-FedAvg: the global model is the one from which a gradient step is best.

Fallah, Mokhtari and Ozdaglar, Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach, NeurIPS 2020,
https://arxiv.org/abs/2002.07948, algorithm 1.

    v = grad F_i(w - alpha grad F_i(w; D); D')
    w <- w - lr v                                            first order, 'fo'
    w <- w - lr (v - alpha d)                              Hessian-free, 'hf'
    d = (grad F_i(w + delta v; D'') - grad F_i(w - delta v; D'')) / (2 delta)

    w -> params; alpha, delta -> hparams; lr -> --learning_rate

D and D' are the halves of a step's batch, with D'' its thirds; each is the
whole batch if that is too small. A client uses w^t after a step of size alpha
on all its examples. No code was released; the paper averages uniformly.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, NonNegative, Positive
from moon_jax.methods.fedavg import fedavg


@checked
def perfedavg(alpha: NonNegative = 0.01, order: Literal['fo', 'hf'] = 'fo',
              delta: Positive = 0.001) -> Algorithm:
  """Returns Per-FedAvg.

  Args:
    alpha: learning rate of the personal step; 0 is FedAvg on D'.
    order: "fo", first order, or "hf", Hessian-free.
    delta: step of the differences of gradients in "hf".
  """

  def gradient(objective, params, batch, view):
    d, *others = parts(batch, 2 if order == 'fo' else 3)
    alpha, delta = view.hparams['alpha'], view.hparams['delta']
    value_and_grad = jax.value_and_grad(objective, has_aux=True)
    grad = lambda params, batch: value_and_grad(params, batch)[1]
    value, v = value_and_grad(
        optax.tree.add_scale(params, -alpha, grad(params, d)), others[0])
    if order == 'fo':
      return value, v
    ahead, behind = (grad(optax.tree.add_scale(params, step, v), others[1])
                     for step in (delta, -delta))
    return value, optax.tree.add_scale(
        v, -alpha / (2 * delta), optax.tree.sub(ahead, behind))

  return fedavg()._replace(
      gradient=gradient, personal_model=personal_model,
      personal_is_current=True, reads_examples=True,
      hparams={'alpha': alpha, 'delta': delta})


def parts(batch, number):
  """Returns a batch as `number` batches of its examples, by their masks."""
  count = jnp.sum(batch.mask)
  part_B = jnp.floor(
      (jnp.cumsum(batch.mask) - 1) * number / jnp.maximum(count, 1))
  return [batch._replace(mask=jnp.where(
      (part_B == i) | (count < number), batch.mask, 0)) for i in range(number)]


def personal_model(trained, view):
  """Returns w^t - alpha grad F_i(w^t), of all examples of the client."""
  w = view.variables
  loss = lambda params, batch: mixing.loss_of(
      view.model, {**w, 'params': params}, batch)
  grads = mixing.mean_of_all(
      view, lambda batch: jax.grad(loss)(w['params'], batch))
  return {**w, 'params': optax.tree.add_scale(
      w['params'], -view.hparams['alpha'], grads)}
