"""FedDyn: a dynamic regularizer moves the minima of clients to the global one.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021,
https://arxiv.org/abs/2111.04263, algorithm 1.

    w_i minimizes F_i(w) - <g_i, w> + alpha/2 |w - w^t|^2
    g_i <- g_i - alpha (w_i - w^t)
    h <- h - alpha 1/N sum_{i in S} (w_i - w^t)
    w^{t+1} = 1/|S| sum_{i in S} w_i - h / alpha

    w^t -> view.variables, -g_i / alpha -> view.client, -h / alpha -> server,
    N -> num_clients

The mean over S is uniform: give weighting="uniform". If a message is lost after
training, g_i moves and h does not: from then on h differs from the mean of the
g_i. The released code has alpha_i = alpha n / |D_i|, n the mean of |D_i|
(https://github.com/alpemreacar/FedDyn).
"""

import functools

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Count, FromRun, NonNegative, Positive
from moon_jax.methods.fedavg import fedavg


@checked
def feddyn(num_clients: FromRun[Count], alpha: Positive = 0.01,
           mean_examples: NonNegative = 0.) -> Algorithm:
  """Returns FedDyn.

  Args:
    alpha: weight of the regularizer.
    mean_examples: mean number n of examples of a client, for the released
      code's alpha n / |D_i|; 0 takes the paper's alpha.
  """
  scale_fn = lambda view: (
      mean_examples / view.num_examples.astype(jnp.float32) if mean_examples
      else 1.)
  return with_regularizer(
      fedavg(), 'alpha', lambda view: view.client, scale_fn)._replace(
          init_server=zeros, init_client=zeros,
          broadcast=lambda server, receiver: (), finish=finish,
          hparams={'alpha': alpha}, made_of=('feddyn',),
          needs={'num_clients': num_clients},
          aggregate=functools.partial(aggregate, num_clients))


def with_regularizer(algorithm: Algorithm, name: str, dual_fn,
                     scale_fn=lambda view: 1.,
                     is_centred: bool = False) -> Algorithm:
  """Returns `algorithm` with alpha (<d, w> + |w - w^t|^2 / 2) in its loss.

  alpha is hparams[name], times `scale_fn(view)`; d is `dual_fn(view)`. If
  `is_centred`, the product is <d, w - w^t>, which has the same gradient.
  """
  def loss(model, variables, batch, view):
    objective, aux = algorithm.loss(model, variables, batch, view)
    params = variables['params']
    moved = optax.tree.sub(params, view.variables['params'])
    product = optax.tree.vdot(dual_fn(view), moved if is_centred else params)
    term = scale_fn(view) * (
        product + optax.tree.norm(moved, squared=True) / 2)
    return objective + view.hparams[name] * term, aux._replace(
        metrics={**aux.metrics, 'regularizer': term})

  return algorithm._replace(loss=loss, penalties={'regularizer': name})


def zeros(variables):
  """Returns zeros like the parameters."""
  return optax.tree.zeros_like(variables['params'])


def finish(variables, view):
  """Adds w_i - w^t to the client state, and sends it with w_i."""
  moved = optax.tree.sub(variables['params'], view.variables['params'])
  return optax.tree.add(view.client, moved), Message(variables, total=moved)


def aggregate(num_clients, variables, server, message, call):
  """Returns the mean of w_i over S plus the mean of d_i over all clients."""
  server = jax.tree.map(
      lambda d, total: d + total / num_clients, server, message.total)
  params = optax.tree.add(message.mean['params'], server)
  return {**message.mean, 'params': params}, server, {}
