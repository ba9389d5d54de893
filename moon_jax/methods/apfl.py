"""APFL: each client uses a mixture of a model of its own and the shared one.

Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020,
https://arxiv.org/abs/2003.13461, algorithm 1.

    w_i <- w_i - lr grad F_i(w_i)            from w^t, as FedAvg
    v_i <- v_i - lr grad_v F_i(m_i)          from its last v_i
    m_i =  a_i v_i + (1 - a_i) w_i           the model that client i uses
    a_i <- a_i - lr <v_i - w_i, grad F_i(m_i)>, in [0, 1]       if adaptive

    w_i, v_i -> 'sent', 'personal' of the trained models; a_i -> 'alpha'

The local optimizer moves a_i, in the first step of a round as in the released
code (https://github.com/MLOPTPSU/FedTorch). That code mixes outputs; w_i moves
before the gradient of v_i; a_i has the gradient <v_i - w_i, a_i g_v +
(1 - a_i) g_w> + 0.02 a_i; here weight decay is on a_i too. Paper and code
average uniformly.
"""

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked, Fraction
from moon_jax.methods.ditto import ditto, personal, sent
from moon_jax.methods.fedavg import fedavg
from moon_jax.models import joint


@checked
def apfl(alpha: Fraction = 0.5, adaptive: bool = False) -> Algorithm:
  """Returns APFL. Client state is v_i, and a_i - alpha if `adaptive`.

  Args:
    alpha: a_i; the first one if `adaptive`.
    adaptive: whether each client learns its weight.
  """
  method = ditto()._replace(
      loss=loss, personal_model=mixture, hparams={'alpha': alpha})
  if not adaptive:
    return method

  def start(view):
    trained = joint.join(sent=view.variables, personal=view.client[0])
    a = view.hparams['alpha'] + view.client[1]
    return {**trained, 'params': {**trained['params'], 'alpha': a}}

  return method._replace(
      init_client=lambda variables: (variables, jnp.float32(0)),
      start=start,
      finish=lambda trained, view: (
          (personal(trained, view),
           weight(trained, view) - view.hparams['alpha']),
          Message(sent(trained, view))),
      trains=lambda params, batch, view: {
          'sent': True, 'personal': True, 'alpha': batch.step == 0})


def weight(trained, view):
  """Returns a_i in [0, 1], with gradient 1."""
  a = trained['params'].get('alpha', view.hparams['alpha'])
  return a + lax.stop_gradient(jnp.clip(a, 0, 1) - a)


def mixture(trained, view):
  """Returns m_i; w_i is constant in it."""
  v, a = personal(trained, view), weight(trained, view)
  return {**v, 'params': jax.tree.map(
      lambda v, w: a * v + (1 - a) * lax.stop_gradient(w),
      v['params'], trained['params']['sent'])}


def loss(model, trained, batch, view):
  """Returns F_i(w_i) + F_i(m_i)."""
  sent_loss, w = fedavg().loss(model, sent(trained, view), batch, view)
  mixed_loss, m = fedavg().loss(model, mixture(trained, view), batch, view)
  joined = joint.join(sent=w.variables, personal=m.variables)
  return sent_loss + mixed_loss, LossAux(
      {**joined, 'params': trained['params']},
      {'sent_loss': sent_loss, 'personal_loss': mixed_loss})
