"""Graphs of clients without a server: gossip and epidemic learning.

Each client is a node with a model of its own. After local training it averages
its model with those of its neighbours:

    x_i^{t+1} = sum_j W_ij y_j^t,    y_j^t the model of node j after training

W has Metropolis weights (Xiao et al., 2007), W_ij = 1 / (1 + max(d_i, d_j))
between neighbours and 1 - sum_j W_ij on the diagonal. Nodes that take no part
in a round keep their model, and count as no neighbours.

    y_j -> mixing.models, x_i -> a row of mixing.models, d_i -> degree_M
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from moon_jax import errors
from moon_jax.config import parts
from moon_jax.config.parts import (
  checked,
  Count,
  File,
  Fraction,
  FromRun,
  Part,
)
from moon_jax.data.io import files
from moon_jax.errors import require, setting
from moon_jax.models.base import Variables
from moon_jax.topologies.base import Mixed, Topology

_RING = Part('ring')


class Neighbours(NamedTuple):
  """The neighbours of each of M nodes, at most D of them.

  Attributes:
    index_MD: int32, the neighbours of a node; any node where there is none.
    is_there_MD: bool, whether there is one.
  """

  index_MD: np.ndarray | jax.Array
  is_there_MD: np.ndarray | jax.Array


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


def mixed(models: Variables, own_weight_M: jax.Array, num_columns: Any,
          column: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
          ) -> Variables:
  """Returns sums of models, [M, ...]: own_weight x_i + sum_d weight x_index.

  `column(d)` returns index and weight of d < `num_columns`, [M].
  """
  def scaled(weight_M, x_M):
    return weight_M.reshape(-1, *[1] * (x_M.ndim - 1)) * x_M

  def add(d, sums):
    # Without neighbours a column adds 0 times another model, which is finite.
    index_M, weight_M = column(d)
    return jax.tree.map(lambda sum_M, x_M: sum_M + scaled(
        weight_M, x_M[index_M]), sums, models)

  return lax.fori_loop(0, num_columns, add, jax.tree.map(
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


def averaged(models: Variables, nodes: Neighbours, is_present_M: jax.Array,
             steps: int = 1) -> Variables:
  """Returns models after averages with Metropolis weights."""
  weight_MD, own_weight_M = metropolis(nodes, is_present_M)
  index_MD = jnp.asarray(nodes.index_MD)
  return lax.fori_loop(0, steps, lambda _, models: mixed(
      models, own_weight_M, index_MD.shape[1],
      lambda d: (index_MD[:, d], weight_MD[:, d])), models)


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
  a complete graph and all clients, "train_mix" is FedAvg with equal weights.

  Args:
    graph: the edges: ring, torus, complete, regular(degree),
      erdos_renyi(probability), file(path), or your own.
    steps: number of averaging steps after each round.
    order: "train_mix" averages the trained models; "mix_train" averages those
      before training and adds each node's own update, as in Lian et al.
      With either order, running statistics are averaged after training.
  """
  nodes = neighbours(edges_of(graph, num_clients, seed), num_clients)

  def mix(mixing):
    trained, start = mixing.models, mixing.start['params']
    if order == 'train_mix':
      return _mixed(averaged(trained, nodes, mixing.weight > 0, steps))
    models = averaged(
        {**trained, 'params': start}, nodes, mixing.weight > 0, steps)
    return _mixed({**models, 'params': jax.tree.map(
        lambda x, y, start: x + (y - start), models['params'],
        trained['params'], start)})

  def sent(present_C):
    return steps * (nodes.is_there_MD * present_C[:, None]
                    * present_C[nodes.index_MD]).sum()

  return _of_nodes(num_clients, mix, steps * nodes.is_there_MD.sum(1), sent)


def _mixed(models):
  return Mixed(models, (), {'consensus_distance': consensus_distance(models)})


def _of_nodes(num_clients, mix, received, sent):
  """Returns the topology of clients that each have a model."""
  return Topology(
      num_models=num_clients, num_clients=num_clients,
      choose=lambda choice: choice.client_id, mix=mix, is_fixed=True,
      has_server=False, received=received, sent=sent)


def recipients(key: jax.Array, num_nodes: int, count: int) -> jax.Array:
  """Returns distinct other nodes for each of M nodes, uniform, int [M, count].

  Floyd's algorithm: Bentley and Floyd, A sample of brilliance, 1987.
  """
  def of_node(node):
    chosen = jnp.full(count, -1)
    for i, last in enumerate(range(num_nodes - 1 - count, num_nodes - 1)):
      drawn = jax.random.randint(
          jax.random.fold_in(jax.random.fold_in(key, node), i), (), 0, last + 1)
      chosen = chosen.at[i].set(jnp.where(
          (chosen == drawn).any(), last, drawn))
    return jnp.where(chosen >= node, chosen + 1, chosen)  # not itself

  return jax.vmap(of_node)(jnp.arange(num_nodes))


@checked
def epidemic(num_clients: FromRun[Count], peers: Count = 1,
             oracle: bool = False, seed: FromRun[int] = 0) -> Topology:
  """Returns clients that send their models to random others in each round.

  Epidemic Learning: de Vos et al., NeurIPS 2023,
  https://arxiv.org/abs/2310.01972. A client averages its own trained model with
  those that it received, with equal weights. If clients are absent, EL-Oracle
  has the weights of `gossip`: 1 / (1 + the larger number of present neighbours)
  for each pair.

  Args:
    peers: number s of clients that each client sends its model to.
    oracle: whether clients exchange models with their s neighbours in a random
      graph, on whose nodes they are placed at random every round (EL-Oracle).
      Otherwise each client draws s recipients by itself (EL-Local).
  """
  require(peers < num_clients, 'peers',
          f'must be less than the {num_clients} clients', peers, 'Lower it')
  if oracle:
    with errors.naming(degree='topology.peers'):
      nodes = neighbours(regular(num_clients, seed, peers), num_clients)

  def mix(mixing):
    is_there_M = mixing.weight > 0
    if oracle:
      node_M = jax.random.permutation(mixing.key, num_clients)
      index_MD, is_there_MD = map(jnp.asarray, nodes)
      return _mixed(averaged(mixing.models, Neighbours(
          jnp.argsort(node_M)[index_MD[node_M]], is_there_MD[node_M]),
                             is_there_M))
    sent_to = recipients(mixing.key, num_clients, peers)
    to_E = jnp.where(
        is_there_M[:, None] & is_there_M[sent_to], sent_to, num_clients).ravel()
    # Those of a node are consecutive, in the order of the senders.
    from_E = jnp.argsort(to_E, stable=True) // peers
    count_M = jnp.bincount(to_E, length=num_clients + 1)[:-1]
    first_M, weight_M = jnp.cumsum(count_M) - count_M, 1 / (1 + count_M)
    models = mixed(mixing.models, weight_M, count_M.max(), lambda d: (
        from_E[jnp.minimum(first_M + d, len(from_E) - 1)],
        jnp.where(d < count_M, weight_M, 0)))
    return _mixed(models)

  def sent(present_C):
    count = present_C.sum()
    # With the oracle absent neighbours are known, and get nothing.
    return peers * count * ((count - 1) / (num_clients - 1) if oracle else 1)

  return _of_nodes(num_clients, mix, peers, sent)


def edges_of(graph: Part | np.ndarray, num_nodes: int, seed: int) -> np.ndarray:
  """Returns the edges of a graph, int [E, 2]; see `gossip`."""
  return checked_edges(graph if isinstance(graph, np.ndarray) else parts.make(
      'graph', parts.parse('graph', graph), num_nodes=num_nodes, seed=seed),
                       num_nodes)


def checked_edges(edges: Any, num_nodes: int) -> np.ndarray:
  """Returns edges as int [E, 2].

  Raises:
    UserError: if they are no pairs of two nodes, or leave the graph in parts.
  """
  edges = np.asarray(edges)
  require(edges.ndim == 2 and edges.shape[1] == 2 and edges.dtype.kind in 'iu',
          'graph', 'must have edges, integers [E, 2]',
          f'{edges.dtype} {list(edges.shape)}',
          'Give each edge as a row of two clients')
  least, most = edges.min(initial=0), edges.max(initial=0)
  require(least >= 0 and most < num_nodes, 'graph', 'must have nodes from 0 '
          f'to {num_nodes - 1}', f'{least} to {most}',
          'Give the numbers of clients')
  require((edges[:, 0] != edges[:, 1]).all(), 'graph',
          'must have no edge from a node to itself',
          f'one at node {edges[edges[:, 0] == edges[:, 1]].ravel()[:1].sum()}',
          'Remove it; a node always keeps a part of its own model')
  count = int((~_reached(edges, num_nodes)).sum())
  require(not count, 'graph', 'must be connected', f'{count} of {num_nodes} '
          'clients that client 0 does not reach',
          'Add edges, or raise the probability of erdos_renyi')
  return edges.astype(np.int64)


def _reached(edges, num_nodes):
  """Returns whether each node is connected to node 0, bool [M]."""
  from scipy.sparse import coo_array, csgraph  # slow to import

  matrix = coo_array((np.ones(len(edges)), tuple(edges.T)),
                     shape=(num_nodes, num_nodes))
  _, label_M = csgraph.connected_components(matrix, directed=False)
  return label_M == label_M[0]


def ring(num_nodes: FromRun[int]) -> np.ndarray:
  """A ring: each node is a neighbour of the nodes before and after it."""
  nodes = np.arange(num_nodes)
  edges = np.stack([nodes, (nodes + 1) % num_nodes], 1)
  return edges[edges[:, 0] != edges[:, 1]]


def torus(num_nodes: FromRun[int]) -> np.ndarray:
  """A grid that is as square as possible, in which each node has 4 neighbours.

  Nodes at an edge are neighbours of those at the opposite one.
  """
  sides = [a for a in range(3, int(num_nodes**.5) + 1) if num_nodes % a == 0]
  require(sides, 'num_clients', 'must be a x b, with a and b of at least 3',
          num_nodes, 'Use 9, 12, 15 or 16 clients, or graph=regular(degree=4)')
  grid = np.arange(num_nodes).reshape(sides[-1], -1)
  return np.concatenate([
      np.stack([grid, np.roll(grid, -1, axis)], -1).reshape(-1, 2)
      for axis in (0, 1)])


def regular(num_nodes: FromRun[int], seed: FromRun[int],
            degree: Count) -> np.ndarray:
  """A random connected graph in which every node has `degree` neighbours.

  It is a fixed regular graph in which the ends of random edges are swapped.

  Args:
    degree: number of neighbours.
  """
  require(degree < num_nodes and degree * num_nodes % 2 == 0
          and (degree > 1 or num_nodes == 2), 'degree', (
              f'must be from 2 to {num_nodes - 1}' if num_nodes > 2 else
              'must be 1') + f' for {num_nodes} clients'
          + ', and even' * (num_nodes % 2), degree, 'Change it or num_clients')
  nodes = np.arange(num_nodes)
  edges = np.concatenate([
      np.stack([nodes, (nodes + step) % num_nodes], 1)
      for step in range(1, degree // 2 + 1)] + degree % 2 * [
          np.stack([nodes, nodes + num_nodes // 2], 1)[:num_nodes // 2]])
  random = np.random.default_rng([seed, 0x72656775])
  known, is_connected = {frozenset(edge) for edge in edges.tolist()}, False
  while not is_connected:
    for e, f, turn in random.integers(
        [len(edges), len(edges), 2], size=(10 * len(edges), 3)):
      (a, b), (c, d) = edges[e].tolist(), edges[f, ::1 - 2 * turn].tolist()
      new = {frozenset((a, d)), frozenset((c, b))}
      if len({a, b, c, d}) == 4 and not new & known:
        known -= {frozenset((a, b)), frozenset((c, d))}
        known |= new
        edges[e], edges[f] = (a, d), (c, b)
    is_connected = bool(_reached(edges, num_nodes).all())
  return edges


def read(path: File, num_nodes: FromRun[int]) -> np.ndarray:
  """Edges of a text file, with two clients on each line.

  They are separated by blanks or a comma. A # starts a comment.

  Args:
    path: the text file.
  """
  edges = []
  for number, line in enumerate(
      files.read_text(path, 'two clients').splitlines(), 1):
    words = line.partition('#')[0].replace(',', ' ').split()
    ends = [int(word) for word in words if word.isascii() and word.isdecimal()
            and len(word) < 10 and int(word) < num_nodes]
    require(not words or len(words) == len({*ends}) == 2, '',
            f'{setting("path", path)}, line {number} must have two different '
            f'clients from 0 to {num_nodes - 1}', repr(line[:40]),
            'Fix the line')
    edges += [ends] * bool(words)
  return np.array(edges, int).reshape(-1, 2)


def complete(num_nodes: FromRun[int]) -> np.ndarray:
  """All nodes are neighbours."""
  return np.stack(np.triu_indices(num_nodes, 1), 1)


def erdos_renyi(num_nodes: FromRun[int], seed: FromRun[int],
                probability: Fraction) -> np.ndarray:
  """A random graph, in which each pair of nodes is an edge independently.

  Args:
    probability: of each edge.
  """
  pairs = complete(num_nodes)
  random = np.random.default_rng([seed, 0x67726170])
  return pairs[random.random(len(pairs)) < probability]
