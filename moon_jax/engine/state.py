"""All that a run carries from round to round, as one tree of arrays."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.models import Model
from moon_jax.models.base import Variables


class State(NamedTuple):
  """The state of R runs between two rounds. A round is State -> State.

  What is not in here, in the configuration or in the data set cannot change a
  result. R and C are the legend's of `moon_jax.engine`.
  """

  variables: Variables  # the global models, [R, ...]
  server: Any  # what the algorithm's server keeps, [R, ...]
  clients: Any  # what the algorithm's clients keep, [R, C, ...]
  round: jax.Array  # int32 scalar, rounds done
  key: jax.Array  # keys [R], constant; rounds and clients are folded in


def init(seeds: list[int], model: Model, algorithm: Algorithm,
         num_clients: int, example: jax.Array) -> State:
  """The state before the first round; one run for each seed.

  Args:
    seeds: of the initial models and of all that is drawn on the device.
    model: the network.
    algorithm: the algorithm.
    num_clients: C.
    example: a batch of inputs as the network is given them.
  """
  def init_run(key):
    init_key, run_key = jax.random.split(key)
    variables = model.init(init_key, example)

    def init_client(client):
      if not algorithm.own_init:
        return algorithm.init_client(variables)
      key = jax.random.fold_in(init_key, client)
      return algorithm.init_client(model.init(key, example))

    clients = jax.vmap(init_client, out_axes=0, axis_size=num_clients)(
        jnp.arange(num_clients))
    return variables, algorithm.init_server(variables), clients, run_key

  keys = jnp.stack([jax.random.key(seed) for seed in seeds])
  variables, server, clients, run_keys = jax.jit(jax.vmap(init_run))(keys)
  return State(variables, server, clients, jnp.int32(0), run_keys)
