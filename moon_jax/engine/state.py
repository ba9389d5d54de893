"""The state of a run between rounds, as one tree of arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np

from moon_jax import debugging
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm
from moon_jax.distributed import devices
from moon_jax.engine import client_store
from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.topologies.base import STAR, Topology


class State(NamedTuple):
  """The state of R runs between two rounds. A round maps State to State.

  Results depend only on the state, the configuration and the data set.
  """

  variables: Variables  # the global models, [R, ...]; [R, M, ...] if the
  # topology has M > 1 of them
  server: Any  # server state of the algorithm, for each global model
  clients: Any  # client state on the host, in one of the forms of
  # `moon_jax.engine.client_store`; a round updates it in place
  round: Any  # int32 [R], the number of finished rounds
  key: jax.Array  # random keys, [R]; constant, since each round and client
  # folds its index in
  history: Any = ()  # of a run whose clients are selected by it
  # (`moon_jax.data.selection.History`); only the host reads it
  topology: Any = ()  # state of the topology, [R, ...]


# Folded into the key of the initial model, for those of other server models;
# larger than all clients.
_MODELS = 0x6d6f6465

# Optimizing it would take longer than running it, which is done once.
_RUN_ONCE = {'xla_backend_optimization_level': 1}


def init(seeds: list[int], model: Model, algorithm: Algorithm,
         num_clients: int, example: jax.Array,
         variables: Variables | None = None,
         fill: Callable[[Any, int], Any] = client_store.filled,
         jitted: dict[str, Callable] | None = None,
         topology: Topology = STAR) -> State:
  """Returns the state before the first round, with one run per seed.

  Args:
    seeds: seeds of the initial models and of all random draws on devices.
    model: the network.
    algorithm: the algorithm.
    num_clients: C.
    example: a batch of network inputs.
    variables: the initial model of all runs and clients; None draws them.
    fill: makes the state of C clients from the one state, [R, ...], with which
      all clients of a run begin.
    jitted: functions that an earlier call with this model, algorithm and
      example has compiled, or an empty dict, which gets them.
    topology: has M models. Clients begin with the state that the first of them
      gives.
  """
  jitted = {} if jitted is None else jitted

  def jit(function, *in_axes):
    return jitted.setdefault(function.__name__, jax.jit(
        debugging.vmap(function, in_axes), compiler_options=_RUN_ONCE))

  def start(key, given):
    return model.init(key, example) if given is None else given

  def init_run(key, given):
    init_key, run_key = jax.random.split(key)
    variables = start(init_key, given)
    if topology.num_models == 1:
      return variables, algorithm.init_server(variables), init_key, run_key
    variables = _all_models(topology, variables, lambda m: model.init(
        jax.random.fold_in(jax.random.fold_in(init_key, _MODELS), m), example))
    return (variables, jax.vmap(algorithm.init_server)(variables), init_key,
            run_key)

  def init_client(init_key, client, given):
    key = jax.random.fold_in(init_key, client)
    return algorithm.init_client(start(key, given))

  keys = jnp.stack([jax.random.key(seed) for seed in seeds])
  given = variables
  variables, server, init_keys, run_keys = jit(init_run, 0, None)(keys, given)
  if algorithm.draws_per_client:
    # The given model is where clients start, not what they draw.
    start_of_clients = given if algorithm.per_client_init else None
    # One client at a time: all of them may not fit on the device.
    init_R = jit(init_client, 0, None, None)
    rows = [jax.device_get(init_R(init_keys, client, start_of_clients))
            for client in range(num_clients)]
    clients = jax.tree.map(lambda *x_R: np.stack(x_R, axis=1), *rows)
  else:
    init_clients = jitted.setdefault(
        'clients', jax.jit(debugging.vmap(algorithm.init_client)))
    clients = fill(init_clients(
        variables if topology.num_models == 1
        else jax.tree.map(lambda x_RM: x_RM[:, 0], variables)), num_clients)
  return State(
      variables, server, clients, jnp.zeros(len(seeds), jnp.int32), run_keys,
      topology=jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(seeds)),
                            topology.init()))


def _all_models(topology, first, draw):
  """Returns the initial models [M, ...], of which the first is given."""
  if topology.begin is None:
    return jax.tree.map(lambda x: jnp.broadcast_to(
        x, (topology.num_models, *x.shape)), first)
  others = jax.vmap(draw)(jnp.arange(1, topology.num_models))
  return topology.begin(jax.tree.map(
      lambda x, others: jnp.concatenate([x[None], others]), first, others))


def placed(state: State, mesh: Mesh) -> State:
  """Returns the state with all but client state replicated on the devices."""
  shared = devices.put(state._replace(clients=()), mesh)
  return shared._replace(clients=state.clients)


def on_host(state: State) -> State:
  """Returns the state as NumPy arrays, with random keys as their bits.

  Client state is on the host already, and is not copied.
  """
  shared = jax.device_get(jax.tree.map(
      lambda x: jax.random.key_data(x) if is_key(x) else x,
      state._replace(clients=())))
  return shared._replace(clients=state.clients)


def from_host(state: State, like: State) -> State:
  """Inverts `on_host`: turns bits into random keys wherever `like` has keys."""
  shared = jax.tree.map(
      lambda x, y: jax.random.wrap_key_data(y) if is_key(x) else y,
      like._replace(clients=()), state._replace(clients=()))
  return shared._replace(clients=state.clients)


def row(tree_R: Any, run: int) -> Any:
  """Returns the part of one run, [R, ...] -> [1, ...]; no copy if R = 1."""
  return jax.tree.map(lambda x_R: x_R[run:run + 1], tree_R)


@jax.jit
def with_row(tree_R: Any, run: int, row: Any) -> Any:
  """Returns the arrays with the part of one run replaced by `row`."""
  return jax.tree.map(lambda x_R, x: x_R.at[run].set(x[0]), tree_R, row)


@jax.jit
def keep(is_kept_R: Any, old: Any, new: Any) -> Any:
  """Returns the old part of the runs that `is_kept_R` selects, else the new."""
  return jax.tree.map(
      lambda x_R, y_R: mixing.where(is_kept_R, x_R, y_R), old, new)


def is_key(x: jax.Array) -> bool:
  """Returns whether an array holds random keys."""
  return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
