"""Graphs of clients without a server: gossip.

Each client is a node with a model of its own. After local training it averages
its model with those of its neighbours:

    x_i^{t+1} = sum_j W_ij y_j^t,    y_j^t the model of node j after training

W has Metropolis weights (Xiao et al., 2007), W_ij = 1 / (1 + max(d_i, d_j))
between neighbours and 1 - sum_j W_ij on the diagonal. Nodes that take no part
in a round keep their model, and count as no neighbours.

    y_j -> mixing.models, x_i -> a row of mixing.models, d_i -> degree_M
"""

from typing import Annotated, Any, Literal, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from moon_jax.config import parts
from moon_jax.config.parts import checked, Count, Fraction, FromRun, Part
from moon_jax.errors import require
from moon_jax.models.base import Variables
from moon_jax.topologies.base import Mixed, Topology

_RING = Part('ring')


class Neighbours(NamedTuple):
  """The neighbours of each of M nodes, at most D of them.

  Attributes:
    index_MD: int32, the neighbours of a node; any node where there is none.
    is_there_MD: bool, whether there is one.
  """

  index_MD: np.ndarray
  is_there_MD: np.ndarray


def neighbours(edges: np.ndarray, num_nodes: int) -> Neighbours:
  """Returns the neighbours of nodes by undirected edges, int [E, 2].

  An edge may be listed twice, or in both directions.
  """
  pairs = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
  count_M = np.bincount(pairs[:, 0], minlength=num_nodes)
  shape = num_nodes, int(count_M.max(initial=1))
  is_there = np.arange(shape[1]) < count_M[:, None]
  index = np.zeros(shape, np.int32)
  index[is_there] = pairs[:, 1]  # sorted by the node
  return Neighbours(index, is_there)


def mixed(models: Variables, index_MD: jax.Array, weight_MD: jax.Array,
          own_weight_M: jax.Array, num_columns: Any = None) -> Variables:
  """Returns sums of models, [M, ...]: own_weight x_i + sum_d weight x_index.

  Takes time for each column d < `num_columns`, by default D.
  """
  count = index_MD.shape[1] if num_columns is None else num_columns

  def scaled(weight_M, x_M):
    return weight_M.reshape(-1, *[1] * (x_M.ndim - 1)) * x_M

  def add(d, sums):
    # Without neighbours a column adds 0 times another model, which is finite.
    return jax.tree.map(lambda sum_M, x_M: sum_M + scaled(
        weight_MD[:, d], x_M[index_MD[:, d]]), sums, models)

  return lax.fori_loop(0, count, add, jax.tree.map(
      lambda x_M: scaled(own_weight_M, x_M), models))


def metropolis(nodes: Neighbours, is_present_M: jax.Array
               ) -> tuple[jax.Array, jax.Array]:
  """Returns the weights of neighbours, [M, D], and of nodes themselves, [M]."""
  is_edge_MD = nodes.is_there_MD & is_present_M[:, None] & (
      is_present_M[nodes.index_MD])
  degree_M = is_edge_MD.sum(1)
  weight_MD = jnp.where(is_edge_MD, 1 / (1 + jnp.maximum(
      degree_M[:, None], degree_M[nodes.index_MD])), 0.)
  return weight_MD, 1 - weight_MD.sum(1)


def consensus_distance(models: Variables) -> jax.Array:
  """Returns the root of the mean squared distance of models to their mean."""
  deviations = jax.tree.map(
      lambda x_M: x_M - x_M.mean(0, keepdims=True), models['params'])
  count = len(jax.tree.leaves(deviations)[0])
  return jnp.sqrt(optax.tree.norm(deviations, squared=True) / count)


@checked
def gossip(num_clients: FromRun[Count], seed: FromRun[int],
           graph: Annotated[Part, 'graph'] = _RING, steps: Count = 1,
           order: Literal['train_mix', 'mix_train'] = 'train_mix') -> Topology:
  """Returns clients that average models with their neighbours in a graph.

  Decentralized SGD: Lian et al., Can Decentralized Algorithms Outperform
  Centralized Algorithms?, NeurIPS 2017, https://arxiv.org/abs/1705.09056. With
  a complete graph and all clients it is FedAvg of equal weights.

  Args:
    graph: the edges: ring, torus, complete, erdos_renyi(probability),
      file(path), or your own.
    steps: averages after each round.
    order: "train_mix" averages the trained models; "mix_train" averages those
      before training and adds each node's own update, as in Lian et al.
  """
  edges = graph if isinstance(graph, np.ndarray) else parts.make(
      'graph', parts.parse('graph', graph), num_nodes=num_clients, seed=seed)
  nodes = neighbours(checked_edges(edges, num_clients), num_clients)

  def mix(mixing):
    weight_MD, own_weight_M = metropolis(nodes, mixing.weight > 0)
    models = mixing.models if order == 'train_mix' else mixing.start
    models = lax.fori_loop(0, steps, lambda _, models: mixed(
        models, jnp.asarray(nodes.index_MD), weight_MD, own_weight_M), models)
    if order == 'mix_train':
      models = jax.tree.map(lambda x, y, start: x + (y - start), models,
                            mixing.models, mixing.start)
    return Mixed(models, (), {'consensus_distance': consensus_distance(models)})

  sent = steps * nodes.is_there_MD.sum() / num_clients
  return Topology(
      num_models=num_clients, choose=lambda choice: choice.client_id, mix=mix,
      is_fixed=True, covers_new_clients=False, received=sent, sent=sent)


def checked_edges(edges: Any, num_nodes: int) -> np.ndarray:
  """Returns edges as int [E, 2].

  Raises:
    UserError: if they are no pairs of two nodes, or leave the graph in parts.
  """
  edges = np.asarray(edges)
  require(edges.ndim == 2 and edges.shape[1] == 2 and edges.dtype.kind in 'iu',
          'graph', 'must have edges, integers [E, 2]',
          f'{edges.dtype} {list(edges.shape)}', 'A row is a pair of clients')
  least, most = edges.min(initial=0), edges.max(initial=0)
  require(least >= 0 and most < num_nodes, 'graph', 'must have nodes from 0 '
          f'to {num_nodes - 1}', f'{least} to {most}', 'They are the clients')
  require((edges[:, 0] != edges[:, 1]).all(), 'graph',
          'must have edges between two nodes',
          f'node {edges[edges[:, 0] == edges[:, 1]][:1, 0]} and itself',
          'Remove them; a node always keeps a part of its own model')
  reached, nodes = _reached(edges, num_nodes), num_nodes
  require(reached.all(), 'graph', 'must connect all clients',
          f'{int((~reached).sum())} of {nodes} that client 0 does not reach',
          'Add edges')
  return edges.astype(np.int64)


def _reached(edges, num_nodes):
  """Returns whether each node is connected to node 0, bool [M]."""
  label_M = np.arange(num_nodes)
  for _ in range(num_nodes):
    least = np.minimum(label_M[edges[:, 0]], label_M[edges[:, 1]])
    new = label_M.copy()
    np.minimum.at(new, edges[:, 0], least)
    np.minimum.at(new, edges[:, 1], least)
    new = new[new]
    if (new == label_M).all():
      break
    label_M = new
  return label_M == 0


def ring(num_nodes: FromRun[int]) -> np.ndarray:
  """Each node has the two next ones as neighbours."""
  nodes = np.arange(num_nodes)
  edges = np.stack([nodes, (nodes + 1) % num_nodes], 1)
  return edges[edges[:, 0] != edges[:, 1]]


def complete(num_nodes: FromRun[int]) -> np.ndarray:
  """All nodes are neighbours."""
  return np.argwhere(np.triu(np.ones((num_nodes, num_nodes)), 1))


def erdos_renyi(num_nodes: FromRun[int], seed: FromRun[int],
                probability: Fraction) -> np.ndarray:
  """Each pair of nodes is an edge with a probability.

  Args:
    probability: of an edge.
  """
  pairs = complete(num_nodes)
  random = np.random.default_rng([seed, 0x67726170])
  return pairs[random.random(len(pairs)) < probability]
