"""FedCross: as many models as clients, which are fused in pairs.

Hu et al., FedCross: Towards Accurate Federated Learning via Multi-Model
Cross-Aggregation, ICDE 2024, https://arxiv.org/abs/2210.08285, algorithm 1.

    v_k <- local steps from w_k, at a random client of its own for each k
    w_k <- alpha v_k + (1 - alpha) v_co(k)
    w^{t+1} = 1/K sum_k w_k                         only reported

    co(k), lowest:   the v_j least similar to v_k, by the cosine of parameters
           highest:  the most similar one
           in_order: j = (k + t mod (K - 1) + 1) mod K in round t

    w_k, the k of each client, t -> server

All clients must train in each round, so that K is the number of clients: the
server does not know the next cohort when it assigns models to clients. If a
message is lost, v_k = w_k. The paper's two accelerations of the first rounds,
dynamic alpha and propeller models, are left out. No code of the authors is
known; a third party's (TsingZ0/PFLlib@d832e76, servercross.py) sums the cosines
of layers instead.
"""

from typing import Annotated, Literal

from annotated_types import Ge
import jax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Fraction, FromRun
from moon_jax.methods.fedavg import fedavg


@checked
def fedcross(num_clients: FromRun[Annotated[int, Ge(2)]],
             alpha: Fraction = 0.99,
             selection: Literal['lowest', 'highest', 'in_order'] = 'lowest'
             ) -> Algorithm:
  """Returns FedCross for two or more clients, which all train each round.

  Args:
    alpha: weight of a model in its fusion with another one.
    selection: the other one: "lowest" or "highest" similarity, or "in_order".
  """
  def aggregate(variables, server, message, call):
    (w_K, k_C, t), each, alpha = server, message.each, call.hparams['alpha']
    v_K = mixing.stored(w_K, each, each.value, k_C[each.client])
    co_K = partners(v_K, t, selection)
    w_K = jax.tree.map(
        lambda x_K: alpha * x_K + (1 - alpha) * x_K[co_K], v_K)
    k_C = jax.random.permutation(call.key, num_clients).astype(jnp.int32)
    return (jax.tree.map(lambda x_K: jnp.mean(x_K, 0), w_K),
            (w_K, k_C, t + 1), {})

  return fedavg()._replace(
      init_server=lambda variables: (
          mixing.copies(variables, num_clients),
          jnp.arange(num_clients, dtype=jnp.int32), jnp.int32(0)),
      broadcast=lambda server, receiver: mixing.at(
          server[0], server[1][receiver.client_id]),
      per_client_broadcast=True,
      start=lambda view: view.server,
      download_bytes=lambda variables, hparams: 0,  # of w^t
      finish=lambda trained, view: (
          view.client, Message(trained, each=trained)),
      aggregate=aggregate, hparams={'alpha': alpha},
      needs={'num_clients': num_clients, 'all_clients': True})


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
