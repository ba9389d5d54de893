"""pFedMe: clients descend the Moreau envelope of their loss.

Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes,
NeurIPS 2020, https://arxiv.org/abs/2006.08848, algorithm 1.

    theta <- theta - lr' (grad F_i(theta) + lam (theta - w_i))   K times a batch
    w_i <- w_i - lr lam (w_i - theta)                                   from w^t
    w^{t+1} = (1 - b) w^t + b mean_i w_i

    w_i, theta -> trained['params'], trained['carried']; lr', b -> hparams

As in the released code (https://github.com/CharlieDinh/pFedMe) theta begins at
w^t and is kept from step to step. That code evaluates w_i, decays theta and
averages by |D_i|; the paper uniformly (--weighting=uniform). Momentum and
weight decay act on w_i alone.
"""

import jax
from jax import lax
import jax.numpy as jnp
import optax

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, LossAux
from moon_jax.config.parts import checked, Count, NonNegative, Positive
from moon_jax.methods.fedavg import fedavg


@checked
def pfedme(lam: Positive = 15.0, inner_steps: Count = 5,
           personal_learning_rate: NonNegative = 0.05,
           server_beta: NonNegative = 1.0) -> Algorithm:
  """Returns pFedMe. Clients keep nothing between rounds.

  Args:
    lam: weight of the pull of theta towards w_i.
    inner_steps: K, the steps on each batch.
    personal_learning_rate: lr'; it is stable below 2 / lam.
    server_beta: b, the part of the change that is taken; 1 takes the mean of
      the clients' models.
  """

  def loss(model, trained, batch, view):
    lam, rate = (view.hparams[x] for x in ('lam', 'personal_learning_rate'))
    w = trained['params']

    def inner_step(_, carry):
      state, theta = carry[0], carry[0]['params']
      (value, aux), grads = jax.value_and_grad(lambda theta: fedavg().loss(
          model, {**state, 'params': theta}, batch, view), has_aux=True)(theta)
      theta = jax.tree.map(
          lambda theta, g, w: theta - rate * (g + lam * (theta - w)),
          theta, grads, lax.stop_gradient(w))
      return {**aux.variables, 'params': theta}, value

    state, value = lax.fori_loop(0, inner_steps, inner_step, lax.stop_gradient(
        (personal(trained, view), jnp.float32(0))))
    apart = optax.tree.norm(optax.tree.sub(w, state['params']), squared=True)
    return value + lam / 2 * apart, LossAux(
        mixing.carry({**state, 'params': w}, state['params']), {})

  return fedavg()._replace(
      start=lambda view: mixing.carry(
          view.variables, view.variables['params']),
      loss=loss, local_model=mixing.model_of, personal_model=personal,
      finish=lambda trained, view: fedavg().finish(
          mixing.model_of(trained), view),
      aggregate=lambda w, server, message, call: (
          {**message.mean, 'params': optax.tree.add_scale(
              w['params'], call.hparams['server_beta'],
              optax.tree.sub(message.mean['params'], w['params']))}, server,
          {}),
      hparams={'lam': lam, 'personal_learning_rate': personal_learning_rate,
               'server_beta': server_beta})


def personal(trained, view):
  """Returns theta."""
  return {**mixing.model_of(trained), 'params': trained['carried']}
