"""FedFomo: a client moves towards the received models that do well on its data.

Zhang et al., Personalized Federated Learning with First Order Model
Optimization, ICLR 2021, https://arxiv.org/abs/2012.08565.

    g_n = (L_i(w_i) - L_i(v_n)) / |v_n - w_i|        of each received model v_n
    w_i <- w_i + sum_n max(g_n, 0) / sum_m max(g_m, 0) (v_n - w_i)
    v_i <- local steps from w_i, sent to the server
    P_in <- P_in + g_n / |sum_m g_m|                 the server's affinity

    w_i, v_i -> view.client; the newest v_n of all clients, P -> Server

v_i is among the v_n. The others are models of the previous round: those of
largest P_in, or random ones, each with probability epsilon - epsilon_decay t in
round t. Without positive g_n, w_i stays. P_ii begins at 0.1, all else of P at
0. All this as in the released code (NVlabs/FedFomo, client.py, federation.py).
That code has the l1 norm for |v_n - w_i|: l1=True.

L_i is the mean loss on the training examples of client i, since clients hold no
others; the paper has a part on which they do not train. There is no global
model; the one that is reported is the mean of the v_i of the round.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.algorithms.fedavg import fedavg


class Server(NamedTuple):
  """What the server keeps."""

  models: dict  # v_n, [C, ...]
  affinity_CC: jax.Array  # P
  sent_CM: jax.Array  # int32, whose models a client gets next; -1 is none
  round: jax.Array  # int32 scalar, the next round


def fedfomo(num_clients: int, num_models: int = 5, epsilon: float = 0.3,
            epsilon_decay: float = 0.05, l1: bool = False) -> Algorithm:
  """Returns FedFomo, where clients receive `num_models` models of others."""
  order = 1 if l1 else 2

  def init_server(variables):
    shape = num_clients, min(num_models, num_clients - 1)
    return Server(mixing.copies(variables, num_clients),
                  .1 * jnp.eye(num_clients), jnp.full(shape, -1, jnp.int32),
                  jnp.int32(0))

  def start(view, model, examples):
    (others, is_sent_M), (w, v) = view.server, view.client
    v_N = jax.tree.map(lambda x, x_M: jnp.concatenate([x[None], x_M]),
                       v, others)
    loss = lambda v: mixing.loss_of_all(model, v, examples, view)
    apart_N = jax.vmap(lambda v: mixing.distance(v, w, order))(v_N)
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

  def aggregate(variables, server, message, hparams, key):
    each, (v_J, gain_JN) = message.each, message.each.value
    total_J = jnp.maximum(jnp.abs(jnp.sum(gain_JN, 1)), 1e-9)
    whose_JN = jnp.concatenate(
        [each.client[:, None], server.sent_CM[each.client]], 1)
    is_added_JN = each.is_received[:, None] & (whose_JN >= 0)
    affinity_CC = server.affinity_CC.at[
        each.client[:, None], whose_JN].add(
            jnp.where(is_added_JN, gain_JN / total_J[:, None], 0))
    is_new_C = mixing.stored(
        jnp.zeros(num_clients, bool), each, each.is_received, each.client)
    chance = hparams['epsilon'] - hparams['epsilon_decay'] * jnp.float32(
        server.round + 1)
    sent_CM = jax.vmap(lambda i, key: chosen(
        affinity_CC[i], is_new_C & (jnp.arange(num_clients) != i), chance,
        server.sent_CM.shape[1], key))(
            jnp.arange(num_clients), jax.random.split(key, num_clients))
    return message.mean, Server(
        mixing.stored(server.models, each, v_J, each.client), affinity_CC,
        sent_CM, server.round + 1)

  return mixing.carrying(fedavg())._replace(
      init_server=init_server, init_client=lambda variables: (
          variables, variables),
      broadcast=lambda server, client_id: (
          mixing.at(server.models, server.sent_CM[client_id]),
          server.sent_CM[client_id] >= 0),
      start=start, finish=finish, aggregate=aggregate,
      hparams={'epsilon': epsilon, 'epsilon_decay': epsilon_decay},
      needs={'num_clients': num_clients})


def chosen(affinity_C, is_free_C, chance, count, key):
  """Returns `count` different clients, int32 [M], and -1 where none is free."""
  ties, order, explores = jax.random.split(key, 3)
  rank_C = jnp.argsort(jnp.lexsort((
      jax.random.uniform(ties, affinity_C.shape), affinity_C)))
  random_C = jax.random.permutation(order, len(affinity_C))

  def choose(is_free_C, explores):
    score_C = jnp.where(explores, random_C, rank_C)
    best = jnp.argmax(jnp.where(is_free_C, score_C, -1))
    return is_free_C.at[best].set(False), jnp.where(is_free_C[best], best, -1)

  _, sent_M = lax.scan(
      choose, is_free_C, jax.random.uniform(explores, count) < chance)
  return sent_M.astype(jnp.int32)
