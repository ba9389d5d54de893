"""Clusters of clients, each with its own model."""

import jax.numpy as jnp

from moon_jax.config.parts import checked, Count
from moon_jax.topologies.base import Topology


@checked
def ifca(clusters: Count) -> Topology:
  """Returns clusters of which each client trains the model of lowest loss.

  Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS
  2020, https://arxiv.org/abs/2006.04088, algorithm 1 with model averaging:

      j_i = argmin_j F_i(w_j^t)
      w_j^{t+1} = the mean of the models of the clients with j_i = j

  The initial models are drawn independently. In each round a client receives
  all models and evaluates them on its training examples.

  Args:
    clusters: number of models, k.
  """
  return Topology(
      num_models=clusters, choose=lambda choice: jnp.argmin(choice.losses),
      same_start=False, needs_losses=True, received=clusters)
