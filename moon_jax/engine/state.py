"""All that a run carries from round to round, as one tree of arrays."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np

from moon_jax.algorithms.base import Algorithm
from moon_jax.distributed import devices
from moon_jax.engine import client_store
from moon_jax.models import Model
from moon_jax.models.base import Variables


class State(NamedTuple):
  """The state of R runs between two rounds. A round is State -> State.

  What is not in here, in the configuration or in the data set cannot change a
  result. R and C are the legend's of `moon_jax.engine`.
  """

  variables: Variables  # the global models, [R, ...]
  server: Any  # what the algorithm's server keeps, [R, ...]
  clients: Any  # what the clients keep, [R, C, ...], numpy arrays on the host;
  # a round writes into them
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
    return variables, algorithm.init_server(variables), init_key, run_key

  def init_own(init_key, client):
    key = jax.random.fold_in(init_key, client)
    return algorithm.init_client(model.init(key, example))

  keys = jnp.stack([jax.random.key(seed) for seed in seeds])
  variables, server, init_keys, run_keys = jax.jit(jax.vmap(init_run))(keys)
  if algorithm.per_client_init:
    # One after another: together they need not fit on the device.
    init_R = jax.jit(jax.vmap(init_own, in_axes=(0, None)))
    rows = [jax.device_get(init_R(init_keys, client))
            for client in range(num_clients)]
    clients = jax.tree.map(lambda *x_R: np.stack(x_R, axis=1), *rows)
  else:
    clients = client_store.filled(
        jax.jit(jax.vmap(algorithm.init_client))(variables), num_clients)
  return State(variables, server, clients, jnp.int32(0), run_keys)


def placed(state: State, mesh: Mesh) -> State:
  """The state with what the devices share whole on each of them."""
  shared = devices.put(state._replace(clients=()), mesh)
  return shared._replace(clients=state.clients)


def on_host(state: State) -> State:
  """The state in numpy arrays, random keys as their bits."""
  return jax.device_get(jax.tree.map(
      lambda x: jax.random.key_data(x) if is_key(x) else x, state))


def from_host(state: State, like: State) -> State:
  """What `on_host` had: bits are keys again where `like` has keys."""
  return jax.tree.map(
      lambda x, y: jax.random.wrap_key_data(y) if is_key(x) else y,
      like, state)


def is_key(x: jax.Array) -> bool:
  """Whether an array holds random keys."""
  return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def client_bytes(model: Model, algorithm: Algorithm,
                 example: jax.Array) -> int:
  """Of what one client keeps, without making it."""
  client = jax.eval_shape(
      lambda key: algorithm.init_client(model.init(key, example)),
      jax.random.key(0))
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(client))
