"""The state of simulations before their first round, in memory or on disk."""

from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
import shutil
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np

from moon_jax import debugging, trees
from moon_jax.engine import client_store, disk_store
from moon_jax.engine import state as state_lib
from moon_jax.engine.state import State
from moon_jax.errors import require, setting, UserError
from moon_jax.models.base import Variables
from moon_jax.simulation.round_spec import RoundSpec


def make(specs: Sequence[RoundSpec], mesh: Mesh,
         directories: Sequence[str], jitted: dict[str, Callable]
         ) -> tuple[State, list[Any]]:
  """Returns the initial state of R runs on the devices, without clients.

  The second value has the state of the clients of each run, [1, C, ...].
  `directories` are for client state on disk; '' is that of temporary files.
  `moon_jax.engine.state.init` describes `jitted`.

  Raises:
    UserError: if `init_variables` are not those of the network, the state of
      a server optimizer has NaN, or client state cannot be on disk.
  """
  fills = list(map(_fill_fn, specs, directories))
  sizes = [spec.federation.num_clients for spec in specs]

  def fill(rows_R, _):
    return [fill_run(state_lib.row(rows_R, run), size)
            for run, (fill_run, size) in enumerate(zip(fills, sizes))]

  first = specs[0]
  with debugging.session(first.program.debug, 'the state before round 1'):
    state = state_lib.init(
        [spec.federation.seed for spec in specs], first.program.model,
        first.program.algorithm, max(sizes), first.example,
        _init_variables(first), fill, jitted, first.program.topology)
  if 'with_server_optimizer' in first.program.algorithm.made_of:
    _check_server(state.server)
  stores = state.clients
  if first.program.algorithm.draws_per_client:  # C is that of the largest run
    stores = [
        jax.tree.map(lambda x_RC: np.ascontiguousarray(
            x_RC[run:run + 1, :size]), state.clients)
        for run, size in enumerate(sizes)]
  return state_lib.placed(state._replace(clients=()), mesh), stores


def _check_server(server):
  for name, x in _by_name(server).items():
    require(not jnp.issubdtype(x.dtype, jnp.inexact)
            or not np.isnan(np.asarray(x)).any(), '',
            'the initial state of a server optimizer must not depend on '
            'hyperparameters, which are NaN when it is made', f'NaN in {name}',
            'Write a number instead of hparams[...] there')


def _fill_fn(spec, directory):
  """Returns the argument `fill` of `moon_jax.engine.state.init`."""
  if spec.federation.client_state == 'memory' or not spec.client_bytes:
    return client_store.filled
  path = pathlib.Path(directory or tempfile.gettempdir()).absolute()
  _check_algorithm(spec)
  _check_space(spec, path)
  return functools.partial(disk_store.DiskClients, directory=path)


def _check_algorithm(spec):
  remedy = f'Give {setting("client_state")}=memory'
  require(jax.process_count() == 1, 'client_state=disk', 'is for one process',
          jax.process_count(), f'{remedy}, or {setting("num_processes")}=1')
  require(can_be_on_disk(spec), 'client_state=disk', 'is for algorithms that '
          'evaluate the global model', 'one that evaluates the state of all '
          'clients together, as solo does', remedy)


def can_be_on_disk(spec: RoundSpec) -> bool:
  """Returns whether no evaluation reads the state of all clients together."""
  return (not spec.federation.algorithm.per_client_init
          and not evaluates_clients(spec))


def evaluates_clients(spec: RoundSpec) -> bool:
  """Returns whether the evaluated models depend on the state of clients."""
  model, algorithm = spec.model, spec.federation.algorithm
  count = spec.federation.num_clients
  clients = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype),
      jax.eval_shape(algorithm.init_client, model))
  program = jax.make_jaxpr(algorithm.evaluated)(model, clients).jaxpr
  of_clients = program.invars[len(jax.tree.leaves(model)):]
  used = [*program.outvars, *[x for eqn in program.eqns for x in eqn.invars]]
  return any(x is y for x in of_clients for y in used)


def _check_space(run, directory):
  # A round writes its rows before it gives up the old ones. A checkpoint is
  # written before the oldest one is deleted.
  rows = run.num_stateful + run.federation.cohort_size
  copies = run.num_checkpoints
  need = run.client_bytes * (rows + copies * run.num_stateful)
  path = disk_store.existing(directory)
  # What an interrupted run has left there is part of what this one needs.
  have = shutil.disk_usage(path).free + sum(
      file.stat().st_size for file in (directory / 'client_state').glob('*'))
  if need > have:
    remedies = ['Free space']
    if copies:
      remedies += [f'lower {setting("checkpoint_keep", copies - 1)}']
    remedies += [f'name a {setting("workdir")} on a larger disk, or train '
                 f'fewer clients in all ({setting("num_rounds")}, '
                 f'{setting("participation")})']
    raise UserError(
        'client_state=disk', f'needs {need / 1e9:,.1f} GB in {path} for the '
        f'state of {run.num_stateful:,} clients ({run.client_bytes:,} bytes '
        f'each) and {copies} copies of it in checkpoints',
        f'{have / 1e9:,.1f} GB', ', '.join(remedies))


def _init_variables(spec):
  """Returns the given initial model, checked; None if it is drawn."""
  variables = spec.federation.init_variables
  if variables is None:
    return None
  if not isinstance(variables, Mapping):
    raise UserError(
        'init_variables', 'must be the variables of a model',
        f'a {type(variables).__name__}',
        'model, variables = moon_jax.load(path) reads them')
  return checked(variables, spec.model, 'init_variables')


def checked(variables: Variables, expected: Variables,
            source: str) -> Variables:
  """Returns variables as a network has them, if they belong to it.

  Arrays belong together if their names are equal, such as params.fc.weight: a
  file may have one level for "fc.weight", or numbers for the items of a list.
  Floating point of any type belongs together.

  Raises:
    UserError: beginning with `source`, and listing the arrays that are missing,
      unexpected or of another shape or type; or naming one that is not finite.
  """
  given, wanted = _by_name(variables), _by_name(expected)
  is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)

  def kind(name, x):
    is_same = name in wanted and is_float(x) == is_float(wanted[name])
    return f'{wanted[name].dtype if is_same else x.dtype}{list(x.shape)}'

  if text := trees.listed(*(
      {name: kind(name, x) for name, x in tree.items()}
      for tree in (given, wanted))):
    raise UserError(
        '', f'{source} must hold the {len(wanted)} arrays of the network', text,
        'Use the same network and number of classes, or another model')
  for name, x in given.items():
    if not np.isfinite(np.asarray(x, np.float64)).all():
      raise UserError('', f'{source} must hold finite numbers',
                      f'NaN or infinity in {name}', 'Use another model')
  return jax.tree.unflatten(
      jax.tree.structure(expected),
      [np.asarray(given[name]).astype(x.dtype) for name, x in wanted.items()])


def _by_name(tree):
  """Returns arrays by name, such as params.out.kernel."""
  return {jax.tree_util.keystr(path, simple=True, separator='.'):
          x if hasattr(x, 'dtype') else np.asarray(x)
          for path, x in jax.tree.leaves_with_path(tree)}
