"""FedCross: as many models as clients, which are fused in pairs.

Hu et al., FedCross: Towards Accurate Federated Learning via Multi-Model
Cross-Aggregation, ICDE 2024, https://arxiv.org/abs/2210.08285, algorithm 1.

    v_k <- local steps from w_k, at a random client of its own for each k
    w_k <- alpha v_k + (1 - alpha) v_co(k)
    w^{t+1} = 1/K sum_k w_k                         only reported

    co(k), lowest:   the v_j least similar to v_k, by the cosine of parameters
           highest:  the most similar one
           in_order: j = (k + t mod (K - 1) + 1) mod K in round t

    w_k -> Middleware.models; the model of each client -> Middleware.model_C

All clients must train in each round, so that K is the number of clients: the
server does not know the next cohort when it deals out its models. If messages
are lost, v_k = w_k. The authors released no code; TsingZ0/PFLlib@d832e76
(servercross.py), which a third party wrote, sums the cosines of layers instead.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.errors import UserError

SELECTIONS = ('lowest', 'highest', 'in_order')


class Middleware(NamedTuple):
  """What the server keeps."""

  models: dict  # w_k, [K, ...]
  model_C: jax.Array  # int32, k of each client
  round: jax.Array  # int32 scalar


def fedcross(num_clients: int, alpha: float = 0.99, selection: str = 'lowest'
             ) -> Algorithm:
  """Returns FedCross for `num_clients` clients, all of which train each round.

  Raises:
    UserError: if there is no such selection, or fewer than two clients.
  """
  if selection not in SELECTIONS or num_clients < 2:
    raise UserError('fedcross needs two clients or more and a selection of '
                    f'{", ".join(SELECTIONS)}; got num_clients={num_clients} '
                    f'and selection={selection!r}. The paper uses lowest')

  def aggregate(variables, server, message, hparams, key):
    each = message.each
    v_K = mixing.stored(
        server.models, each, each.value, server.model_C[each.client])
    co_K = partners(v_K, server.round, selection)
    w_K = jax.tree.map(lambda x_K: hparams['alpha'] * x_K + (
        1 - hparams['alpha']) * x_K[co_K], v_K)
    return jax.tree.map(lambda x_K: jnp.mean(x_K, 0), w_K), Middleware(
        w_K, jax.random.permutation(key, num_clients).astype(jnp.int32),
        server.round + 1)

  return fedavg()._replace(
      init_server=lambda variables: Middleware(
          mixing.copies(variables, num_clients),
          jnp.arange(num_clients, dtype=jnp.int32), jnp.int32(0)),
      broadcast=lambda server, client_id: mixing.at(
          server.models, server.model_C[client_id]),
      start=lambda view: view.server,
      finish=lambda trained, view: (
          view.client, Message(trained, each=trained)),
      aggregate=aggregate, hparams={'alpha': alpha},
      needs={'num_clients': num_clients, 'cohorts': None})


def partners(v_K, round, selection):
  """Returns co(k) of each model, int32 [K]."""
  leaves = jax.tree.leaves(v_K['params'])
  count = len(leaves[0])
  if selection == 'in_order':
    return (jnp.arange(count) + round % (count - 1) + 1) % count
  v_KF = jnp.concatenate([x_K.reshape(count, -1) for x_K in leaves], 1)
  v_KF = v_KF / jnp.linalg.norm(v_KF, axis=1, keepdims=True)
  cosine_KK = jnp.matmul(v_KF, v_KF.T, precision='highest')
  sign = 1 if selection == 'highest' else -1
  return jnp.argmax(jnp.where(
      jnp.eye(count, dtype=bool), -jnp.inf, sign * cosine_KK), 1)
