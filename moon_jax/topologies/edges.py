"""Edge servers between the clients and the cloud: hierarchical averaging.

Liu et al., Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020,
https://arxiv.org/abs/1905.06641, algorithm 1.

    each round:            w^l = sum_{i of edge l} |D_i| w_i / |D^l|
    every kappa_2 rounds:  w^l = sum_l |D^l| w^l / |D|, for all edges

    kappa_2 -> period, |D^l| -> the sum of the shares of an edge in the weights
    of all rounds since the last of these
"""

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.config.parts import checked, Count, FromRun
from moon_jax.errors import require
from moon_jax.topologies.base import Mixed, Topology


@checked
def hierarchical(num_clients: FromRun[Count], edges: Count,
                 period: Count = 1) -> Topology:
  """Returns edge servers, whose models the cloud averages.

  Each round ends at the edge servers, which have blocks of consecutive clients.
  With one edge server it is FedAvg, and also with period 1, up to rounding.

  Args:
    edges: number of edge servers.
    period: number of rounds from one average of the cloud to the next, kappa_2.
  """
  require(edges <= num_clients, 'edges', f'must be at most the {num_clients} '
          'clients', edges, 'Lower it')

  edge_C = (np.arange(num_clients) * edges // num_clients).astype(np.int32)

  def mix(mixing):
    weight_M = mixing.state + mixing.weight
    share_M = weight_M / jnp.maximum(
        weight_M.sum(), jnp.finfo(jnp.float32).tiny)
    is_cloud = ((mixing.round + 1) % period == 0) & (weight_M.sum() > 0)
    models = jax.tree.map(lambda x_M: jnp.where(is_cloud, jnp.einsum(
        'm,m...->...', share_M, x_M, precision='highest'), x_M), mixing.models)
    return Mixed(models, jnp.where(is_cloud, 0, weight_M))

  return Topology(
      num_models=edges, init=lambda: jnp.zeros(edges),
      choose=lambda choice: jnp.asarray(edge_C)[choice.client_id], mix=mix,
      num_clients=num_clients, is_fixed=True,
      between_servers=lambda num_rounds: 2 * edges * (num_rounds // period))
