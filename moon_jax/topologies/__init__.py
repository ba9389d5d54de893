"""Topologies: server models, the clients that train each, and their mixing."""

from moon_jax.topologies.base import (
  Choice,
  Mixed,
  Mixing,
  star,
  Topology,
  Updates,
)
from moon_jax.topologies.clusters import cfl, ifca
from moon_jax.topologies.edges import hierarchical
from moon_jax.topologies.graphs import epidemic, gossip

__all__ = ['Choice', 'Mixed', 'Mixing', 'Topology', 'Updates', 'cfl',
           'epidemic', 'gossip', 'hierarchical', 'ifca', 'star']
