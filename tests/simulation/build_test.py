"""Tests that federations have the values of their configuration."""

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.algorithms.base import Message
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.simulation import build


def test_clipped_updates_are_divided_by_the_largest_listed_cohort():
  config = Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=8,
      weighting='uniform', dp_clip=1.)
  algorithm = build.federation(
      config, sources.load('digits', ''), cohorts=[[0], [1, 2]]).algorithm
  variables = {'params': {'w': jnp.zeros(3)}}
  message = Message((), jax.tree.map(jnp.ones_like, variables))
  with jax.numpy_dtype_promotion('standard'):  # optax's noise promotes types
    following, _ = algorithm.aggregate(
        variables, algorithm.init_server(variables), message)
  np.testing.assert_allclose(following['params']['w'], 1 / 2)
