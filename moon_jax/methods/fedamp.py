"""FedAMP: each client is pulled towards a mixture of models like its own.

Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI
2021, https://arxiv.org/abs/2007.03797, algorithm 1, A(x) = 1 - exp(-x / sigma).

    xi_ij = alpha A'(|w_i - w_j|^2) = alpha / sigma exp(-|w_i - w_j|^2 / sigma)
    u_i   = (1 - sum_{j != i} xi_ij) w_i + sum_{j != i} xi_ij w_j    the server
    w_i  <- argmin_w F_i(w) + lam / (2 alpha) |w - u_i|^2            client i

    w_i -> view.client, and Cloud.models of all clients; u_i -> view.server

The client minimizes by its local steps, from its last w_i: the paper leaves the
start open, and no code is known. Clients that were never received have the
initial model. The global model is only reported: the mean of the w_i that the
round received. With more than 1 + sigma / alpha clients, 101 by default, the
weight of w_i in u_i may be negative, unlike in the paper. With |w_i - w_j|^2
far above sigma, clients train alone.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Count, FromRun, NonNegative, Positive
from moon_jax.methods.fedavg import fedavg


class Cloud(NamedTuple):
  """What the server keeps."""

  models: dict  # the newest w_i of each client, [C, ...]
  xi_CC: jax.Array  # the weights of u_i in row i


@checked
def fedamp(num_clients: FromRun[Count], alpha: Positive = 0.01,
           sigma: Positive = 1.0, lam: NonNegative = 0.01) -> Algorithm:
  """Returns FedAMP for `num_clients` clients.

  Args:
    alpha: step size of the server, with which similar models attract.
    sigma: squared distance at which the attraction has fallen by 1 / e.
    lam: weight of the pull, which is lam / alpha; 0 is training alone.
  """

  def broadcast(cloud, receiver):
    xi_C = cloud.xi_CC[receiver.client_id]
    return jax.tree.map(lambda w_C: jnp.tensordot(
        xi_C, w_C, 1, precision='highest'), cloud.models)

  def loss(model, trained, batch, view):
    objective, aux = fedavg().loss(model, trained, batch, view)
    attention = mixing.square_distance(trained, view.server) / 2
    weight = view.hparams['lam'] / view.hparams['alpha']
    return objective + weight * attention, aux._replace(
        metrics={'attention': attention})

  def aggregate(variables, cloud, message, call):
    each, client_C = message.each, jnp.arange(num_clients)
    alpha, sigma = call.hparams['alpha'], call.hparams['sigma']
    models = mixing.stored(cloud.models, each, each.value, each.client)
    square_CC = lax.map(lambda i: jax.vmap(lambda j: mixing.square_distance(
        mixing.at(models, i), mixing.at(models, j)))(client_C), client_C)
    xi_CC = alpha / sigma * jnp.exp(
        -square_CC / sigma) * (1 - jnp.eye(num_clients))
    return message.mean, Cloud(
        models, xi_CC + jnp.diag(1 - jnp.sum(xi_CC, 1))), {}

  return fedavg()._replace(
      init_server=lambda variables: Cloud(
          mixing.copies(variables, num_clients), jnp.eye(num_clients)),
      broadcast=broadcast, per_client_broadcast=True,
      init_client=lambda variables: variables,
      start=lambda view: view.client, loss=loss,
      download_bytes=lambda variables, hparams: 0,  # of the mean
      finish=lambda trained, view: (trained, Message(trained, each=trained)),
      aggregate=aggregate, needs={'num_clients': num_clients},
      hparams={'alpha': alpha, 'sigma': sigma, 'lam': lam})
