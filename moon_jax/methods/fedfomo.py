"""FedFomo: a client moves towards the received models that do well on its data.

Zhang et al., Personalized Federated Learning with First Order Model
Optimization, ICLR 2021, https://arxiv.org/abs/2012.08565.

    g_n = (L_i(w_i) - L_i(v_n)) / |v_n - w_i|        of each received model v_n
    w_i <- w_i + sum_n max(g_n, 0) / sum_m max(g_m, 0) (v_n - w_i)
    v_i <- local steps from w_i, sent to the server
    P_in <- P_in + g_n / |sum_m g_m|                 the server's affinity

    w_i, v_i -> view.client; v_n, P, whose models each client gets, t -> server

v_i is among the v_n. The others have the largest P_in, or are random ones with
probability epsilon - epsilon_decay t; only models that the server received in
the last round are offered. As in the released code (NVlabs/FedFomo,
client.py, federation.py) w_i stays without a positive g_n, P_ii begins at 0.1,
all else of P at 0; l1=True is its norm. L_i is on the training examples; the
paper holds some out. There is no global model: the mean of the v_i is reported.
"""

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Count, Fraction, FromRun, NonNegative
from moon_jax.methods.fedavg import fedavg


@checked
def fedfomo(num_clients: FromRun[Count], num_models: Count = 5,
            epsilon: Fraction = 0.3, epsilon_decay: NonNegative = 0.05,
            l1: bool = False) -> Algorithm:
  """Returns FedFomo.

  Args:
    num_models: models of other clients that a client receives.
    epsilon: probability of random models in the first round.
    epsilon_decay: what this probability loses in each round.
    l1: whether |v_n - w_i| is the L1 norm, as in the released code.
  """
  num_sent = min(num_models, num_clients - 1)

  def broadcast(server, receiver):
    sent_M = server[2][receiver.client_id]
    return mixing.at(server[0], sent_M), sent_M >= 0

  def start(view):
    (others, is_sent_M), (w, v) = view.server, view.client
    v_N = jax.tree.map(lambda x, x_M: jnp.concatenate([x[None], x_M]),
                       v, others)
    loss = lambda v: mixing.loss_of_all(v, view)
    apart_N = jax.vmap(lambda v: mixing.distance(v, w, ord=1 if l1 else 2))(v_N)
    gain_N = (loss(w) - lax.map(loss, v_N)) / jnp.where(apart_N > 0, apart_N, 1)
    gain_N = jnp.where((apart_N > 0) & jnp.append(True, is_sent_M), gain_N, 0)
    a_N = jax.nn.relu(gain_N)
    a_N = a_N / jnp.where(jnp.sum(a_N) > 0, jnp.sum(a_N), 1)
    w = jax.tree.map(lambda x, x_N: x + jnp.tensordot(
        a_N, x_N - x[None], 1, precision='highest'), w, v_N)
    return mixing.carry(w, (w, gain_N))

  def finish(trained, view):
    v, (w, gain_N) = mixing.model_of(trained), trained['carried']
    return (w, v), Message(v, each=(v, gain_N))

  def aggregate(variables, server, message, call):
    v_C, affinity_CC, sent_CM, t = server
    each, (v_J, gain_JN) = message.each, message.each.value
    i_J1 = each.client[:, None]
    n_JN = jnp.concatenate([i_J1, sent_CM[each.client]], 1)
    epsilon, decay = (
        call.hparams[name] for name in ('epsilon', 'epsilon_decay'))
    total_J1 = jnp.maximum(jnp.abs(jnp.sum(gain_JN, 1)), 1e-9)[:, None]
    affinity_CC = affinity_CC.at[i_J1, n_JN].add(jnp.where(
        each.is_received[:, None] & (n_JN >= 0), gain_JN / total_J1, 0))
    is_new_C = mixing.stored(
        jnp.zeros(num_clients, bool), each, each.is_received, each.client)
    sent_CM = mixing.chosen(
        affinity_CC, is_new_C[None] & ~jnp.eye(num_clients, dtype=bool),
        epsilon - decay * jnp.float32(t + 1), num_sent, call.key)
    return message.mean, (mixing.stored(v_C, each, v_J, each.client),
                          affinity_CC, sent_CM, t + 1), {}

  return mixing.carrying(fedavg())._replace(
      init_server=lambda w: (
          mixing.copies(w, num_clients), .1 * jnp.eye(num_clients),
          jnp.full((num_clients, num_sent), -1, jnp.int32), jnp.int32(0)),
      init_client=lambda w: (w, w), broadcast=broadcast,
      per_client_broadcast=True, reads_examples=True,
      start=start, finish=finish, aggregate=aggregate,
      download_bytes=lambda variables, hparams: 0,  # of the mean
      hparams={'epsilon': epsilon, 'epsilon_decay': epsilon_decay},
      needs={'num_clients': num_clients})
