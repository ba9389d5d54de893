"""The state of simulations before their first round."""

from collections.abc import Mapping
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np

from moon_jax.distributed import devices
from moon_jax.engine import state as state_lib
from moon_jax.engine.client_store import RunStores
from moon_jax.engine.state import State
from moon_jax.errors import UserError
from moon_jax.models.base import Variables
from moon_jax.simulation import client_storage
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec

_MAX_LISTED = 3  # arrays of each kind in an error message


def make(federations: Sequence[Federation], specs: Sequence[RoundSpec],
         spec: RoundSpec, mesh: Mesh, directories: Sequence[str]) -> State:
  """Returns the initial state of R runs on the devices.

  Args:
    federations: of the runs.
    specs: for each run the specification of its rounds.
    spec: the specification of the rounds of all runs.
    mesh: the devices.
    directories: for each run, see `client_storage.fill_fn`.

  Raises:
    UserError: if `init_variables` are not those of the network, or client
      state cannot be on disk.
  """
  fills = [client_storage.fill_fn(*run)
           for run in zip(federations, specs, directories)]

  def fill(rows_R, _):
    return _joined([
        fill_run(jax.tree.map(lambda x_R: x_R[run:run + 1], rows_R),
                 federation.num_clients)
        for run, (fill_run, federation) in enumerate(zip(fills, federations))])

  first = federations[0]
  model, algorithm = first.model, spec.program.algorithm
  seeds = [federation.seed for federation in federations]
  num_clients = max(federation.num_clients for federation in federations)
  state = state_lib.init(
      seeds, model, algorithm, num_clients, spec.example,
      _init_variables(first, specs[0]), fill)
  if algorithm.draws_per_client and len(federations) > 1:
    state = state._replace(clients=_joined([
        jax.tree.map(lambda x_RC: np.ascontiguousarray(
            x_RC[run:run + 1, :f.num_clients]), state.clients)
        for run, f in enumerate(federations)]))
  if len(federations) > 1:
    state = state._replace(round=jnp.zeros(len(federations), jnp.int32))
  return state_lib.placed(state, mesh)


def _joined(stores):
  """Returns the client state of all runs, given that of each run."""
  return stores[0] if len(stores) == 1 else RunStores(stores)


def _init_variables(federation, spec):
  """Returns the given initial model of a run, checked; None if it is drawn."""
  variables, config = federation.init_variables, federation.config
  if variables is None:
    return None
  if not isinstance(variables, Mapping):
    raise UserError(
        'init_variables must be the variables of a model; got a '
        f'{type(variables).__name__}. model, variables = moon_jax.load(path) '
        'reads them')
  is_flag = config is not None and config.init_from
  return checked(
      variables, spec.model,
      f'--init_from={config.init_from}' if is_flag else 'init_variables')


def hparams(federations: Sequence[Federation], rounds: Sequence[int],
            mesh: Mesh) -> dict[str, jax.Array]:
  """Returns the hyperparameters of rounds on the devices, float32 [R].

  Args:
    federations: of the runs.
    rounds: for each run the index of its round.
    mesh: the devices.
  """
  values = [federation.hparams(index)
            for federation, index in zip(federations, rounds)]
  return devices.put({
      name: np.array([run[name] for run in values], np.float32)
      for name in values[0]}, mesh)


def checked(variables: Variables, expected: Variables,
            source: str) -> Variables:
  """Returns variables with the types of a network, if they belong to it.

  Args:
    variables: a tree of arrays.
    expected: the shapes and types of the network's variables.
    source: the beginning of error messages.

  Raises:
    UserError: listing the arrays that are missing, unexpected or of another
      shape or type; or naming an array that is not finite.
  """
  given, wanted = _by_name(variables), _by_name(expected)
  differences = [
      ('missing', [f'{name} {_kind(x)}' for name, x in wanted.items()
                   if name not in given]),
      ('unexpected', [f'{name} {_kind(x)}' for name, x in given.items()
                      if name not in wanted]),
      ('different', [
          f'{name} {_kind(given[name])} instead of {_kind(x)}'
          for name, x in wanted.items() if name in given
          and (np.shape(given[name]) != x.shape
               or _family(given[name]) != _family(x))])]
  if any(names for _, names in differences):
    text = '; '.join(
        f'{len(names)} {kind} ({", ".join(names[:_MAX_LISTED])}'
        f'{", ..." if len(names) > _MAX_LISTED else ""})'
        for kind, names in differences if names)
    raise UserError(
        f'{source} must hold the {len(wanted)} arrays of the network, got '
        f'{text}. Use the same network and number of classes, or another model')
  for name, x in given.items():
    if not np.isfinite(np.asarray(x, np.float64)).all():
      raise UserError(f'{source} must hold finite numbers, got NaN or infinity '
                      f'in {name}; use another model')
  return jax.tree.unflatten(
      jax.tree.structure(expected),
      [np.asarray(given[name]).astype(x.dtype) for name, x in wanted.items()])


def _by_name(tree):
  """Returns the arrays of a tree by name, such as params.out.kernel."""
  return {jax.tree_util.keystr(path, simple=True, separator='.'): x
          for path, x in jax.tree.leaves_with_path(tree)}


def _family(x):
  """Returns whether an array holds floating-point numbers of any length."""
  return bool(jnp.issubdtype(np.asarray(x).dtype if not hasattr(x, 'dtype')
                             else x.dtype, jnp.floating))


def _kind(x):
  """Returns type and shape, such as float32[3,4]."""
  x = x if hasattr(x, 'dtype') else np.asarray(x)
  return f'{x.dtype}[{",".join(map(str, x.shape))}]'
