"""Where a run keeps client state: in memory, or on disk (--client_state)."""

from collections.abc import Callable
import functools
import pathlib
import shutil
import tempfile
from typing import Any

import jax

from moon_jax.engine import client_store
from moon_jax.engine import disk_store
from moon_jax.errors import UserError
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec


def fill_fn(federation: Federation, spec: RoundSpec,
            directory: str = '') -> Callable[[Any, int], Any]:
  """Returns the argument `fill` of `moon_jax.engine.state.init`.

  Args:
    federation: the federation.
    spec: the specification of its rounds.
    directory: for the file with client state; empty for the system's directory
      of temporary files.

  Raises:
    UserError: if client state cannot be on disk, or the disk is too small.
  """
  if federation.client_state == 'memory' or not spec.client_bytes:
    return client_store.filled
  path = pathlib.Path(directory or tempfile.gettempdir()).absolute()
  _check_algorithm(federation, spec)
  _check_space(federation, spec, path)
  return functools.partial(disk_store.filled, directory=path)


def _check_algorithm(federation, run):
  algorithm = federation.algorithm
  if jax.process_count() > 1:
    raise UserError(
        '--client_state=disk is for a single process, got '
        f'{jax.process_count()}; give --num_processes=1 or '
        '--client_state=memory')
  if algorithm.draws_client_state:
    raise UserError(
        '--client_state=disk is for clients that begin with the same state, '
        'got an algorithm that draws it for each client, as moon with '
        '--first_negative=random does; give --client_state=memory')
  if algorithm.per_client_init or _evaluates_clients(federation, run.model):
    raise UserError(
        '--client_state=disk is for algorithms that evaluate the global model, '
        'got one that evaluates the state of all clients together, as solo '
        'does; give --client_state=memory')


def _evaluates_clients(federation, model):
  """Returns whether the evaluated models depend on the state of clients."""
  algorithm, count = federation.algorithm, federation.num_clients
  clients = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype),
      jax.eval_shape(algorithm.init_client, model))
  program = jax.make_jaxpr(algorithm.evaluated)(model, clients).jaxpr
  of_clients = program.invars[len(jax.tree.leaves(model)):]
  used = [*program.outvars, *[x for eqn in program.eqns for x in eqn.invars]]
  return any(x is y for x in of_clients for y in used)


def _check_space(federation, run, directory):
  """Checks the space for the clients that the run will train."""
  flags = federation.flags()
  # A round writes its rows before it gives up the old ones. A checkpoint is
  # written before the oldest one is deleted.
  rows = run.num_stateful + federation.cohort_size
  has_checkpoints = flags.get('checkpoint_every', 0) > 0
  copies = (flags.get('checkpoint_keep', 0) + 1) * has_checkpoints
  need = run.client_bytes * (rows + copies * run.num_stateful)
  path = disk_store.existing(directory)
  # What an interrupted run has left there is part of what this one needs.
  have = shutil.disk_usage(path).free + sum(
      file.stat().st_size for file in (directory / 'client_state').glob('*'))
  if need > have:
    remedies = ['free space']
    if has_checkpoints:
      remedies += [f'lower --checkpoint_keep={flags["checkpoint_keep"]}']
    remedies += ['name a --workdir on a larger disk, or train fewer clients '
                 'in all (--num_rounds, --participation)']
    raise UserError(
        f'--client_state=disk needs {need / 1e9:,.1f} GB in {path} for the '
        f'state of {run.num_stateful:,} clients ({run.client_bytes:,} bytes '
        f'each) and {copies} copies of it in checkpoints, but '
        f'{have / 1e9:,.1f} GB are free; {", ".join(remedies)}')
