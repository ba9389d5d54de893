"""Runs a planned round: each device trains its lanes, then all are summed."""

import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import flatten_util
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT
from moon_jax.distributed.devices import WHOLE
from moon_jax.engine import accumulate
from moon_jax.engine import client_store
from moon_jax.engine import segments
from moon_jax.engine.local import Program
from moon_jax.engine.local import TrainData
from moon_jax.engine.schedule import Table
from moon_jax.engine.state import State
from moon_jax.models.base import Variables
from moon_jax.optimizers import Hyperparameters


class RoundMetrics(NamedTuple):
  """What a round records; 0 where a lane was idle."""

  loss_TL: jax.Array  # the local objective before each step
  extra_TL: dict[str, jax.Array]  # the algorithm's own scalars, likewise
  drift_J: jax.Array  # |w_i - w^t| after each job
  finite_J: jax.Array  # whether its losses, and all that it ended with, were
  # numbers: other jobs changed nothing
  finite_R: jax.Array  # whether all of the next global model and server are
  cosine_R: jax.Array  # mean cosine between two updates w_i - w^t; NaN of one
  # Of each job, () unless Program.keep_models:
  cosine_J: jax.Array  # between its update and the mean of all directions
  models_J: Variables  # its local model


class Round:
  """Runs rounds of a program: (state, hparams_R, table, data) -> ....

  Hyperparameters are float32 [R]; data lie as `data_spec` says, and the table's
  indices are of what its device has. What clients keep is changed in place. One
  compilation serves all rounds and cohorts whose
  tables have one shape.
  """

  def __init__(self, program: Program, mesh: Mesh,
               data_spec: PartitionSpec = WHOLE):
    of_lanes = PartitionSpec(None, devices.AXIS)
    self._table = table = Table(
        jobs=SPLIT, num_rows=SPLIT, num_segments=SPLIT, bounds=SPLIT, own=SPLIT,
        job_TL=of_lanes, step_TL=of_lanes, examples_TLB=of_lanes)
    self._mesh, self._data_spec = mesh, data_spec
    self._run = jax.jit(jax.shard_map(
        functools.partial(_run_round, program), mesh=mesh,
        in_specs=(WHOLE, SPLIT, WHOLE, table, data_spec),
        out_specs=(WHOLE, SPLIT, RoundMetrics(
            loss_TL=of_lanes, extra_TL=of_lanes, drift_J=SPLIT, finite_J=SPLIT,
            finite_R=WHOLE, cosine_R=WHOLE, cosine_J=SPLIT, models_J=SPLIT)),
        check_vma=False), donate_argnums=1)

  def lower(self, shared: dict[str, Any], clients_J: Any,
            hparams: Hyperparameters, table: Table, data: TrainData
            ) -> jax.stages.Lowered:
    """Lowers the round for arguments of these shapes; none has to exist.

    The devices need not exist either: a mesh of those of a
    `jax.experimental.topologies` description will do.

    Args:
      shared: the fields of `State` except `clients`.
      clients_J: client state of a round's jobs.
      hparams: as in a round.
      table: likewise.
      data: likewise.
    """
    def placed(tree, spec):
      sharding = NamedSharding(self._mesh, spec)
      return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
          x.shape, x.dtype, sharding=sharding), tree)

    table = Table(*map(placed, table, self._table))
    return self._run.lower(
        placed(shared, WHOLE), placed(clients_J, SPLIT), placed(hparams, WHOLE),
        table, placed(data, self._data_spec))

  def compile(self, *args) -> None:
    """For tables of this shape alone: another is an error from now on."""
    self._run = self._run.lower(*self._on_devices(*args)).compile()

  def temporary_bytes(self) -> int:
    """What it holds on a device while it runs, as XLA counts it."""
    return self._run.memory_analysis().temp_size_in_bytes

  def __call__(self, state: State, hparams: Hyperparameters, table: Table,
               data: TrainData) -> tuple[State, RoundMetrics]:
    """Starts a round and waits for what its clients keep."""
    shared, clients_J, metrics = self.start(state, hparams, table, data)
    return self.finish(state, table, shared, clients_J), metrics

  def start(self, *args):
    """Returns at once, while the devices train."""
    return self._run(*self._on_devices(*args))

  def finish(self, state: State, table: Table, shared, clients_J) -> State:
    """The state after the round that `start` began."""
    client_store.put(state.clients, table.jobs, clients_J)
    return State(clients=state.clients, **shared)

  def _on_devices(self, state, hparams, table, data):
    clients_J = devices.put(
        client_store.take(state.clients, table.jobs), self._mesh, SPLIT)
    table = Table(*[
        devices.put(part, self._mesh, spec)
        for part, spec in zip(table, self._table)])
    data = devices.put(data, self._mesh, self._data_spec)
    shared = state._asdict()
    del shared['clients']
    return shared, clients_J, hparams, table, data


def _run_round(program, shared, clients_J, hparams_R, table, data):
  """A round on one device: its lanes, its jobs, and sums over all devices."""
  first_job = lax.axis_index(devices.AXIS) * len(table.jobs.run)
  table = table._replace(job_TL=jnp.where(
      table.job_TL >= 0, table.job_TL - first_job, -1))
  inputs = segments.Inputs(
      **shared, hparams=hparams_R, table=table, data=data)
  done, metrics_TL = segments.train(program, inputs, clients_J)

  jobs = table.jobs
  is_received_J = jobs.is_received & done.finite_J
  of_runs = functools.partial(_sum_of_runs, jobs.run, inputs.num_runs)
  sums, directions, num_moved_R, num_received_R, num_left_out_R, weight_R = (
      _sum_over_devices((
          done.sums, done.directions,
          of_runs(done.finite_J & (done.drift_J > 0)), of_runs(is_received_J),
          of_runs(jobs.is_received & ~done.finite_J),
          of_runs(jnp.where(is_received_J, jobs.weight, 0)))))
  # Weights are of all that were to be received: others share what is missing.
  all_weight_R = jnp.where(num_left_out_R > 0, weight_R, 1)
  sums = sums._replace(mean=jax.vmap(
      lambda mean, weight: jax.tree.map(lambda x: x / weight, mean))(
          sums.mean, all_weight_R))
  before = shared['variables'], shared['server']
  after = jax.vmap(program.algorithm.aggregate)(*before, sums)
  # A run of which nothing was received stays as it is.
  variables, server = jax.tree.map(
      functools.partial(accumulate.where, num_received_R > 0), after, before)
  cosine_J = ()
  if program.keep_models:
    cosine_J = accumulate.cosine_with_mean(before[0], jobs, done, directions)
  shared = {**shared, 'variables': variables, 'server': server,
            'round': shared['round'] + 1}
  return shared, done.clients_J, RoundMetrics(
      loss_TL=metrics_TL.loss, extra_TL=metrics_TL.extra, drift_J=done.drift_J,
      finite_J=done.finite_J,
      finite_R=jax.vmap(accumulate.all_finite)((variables, server)),
      cosine_R=jax.vmap(accumulate.mean_cosine)(directions, num_moved_R),
      cosine_J=cosine_J, models_J=done.models_J)


def _sum_over_devices(tree):
  """The sums over all devices, by one all-reduce of one array.

  XLA would split the all-reduce of a tree into parts of some 30 MB.
  """
  if lax.axis_size(devices.AXIS) == 1:
    return tree
  flat, unravel = flatten_util.ravel_pytree(tree)
  return unravel(lax.psum(flat, devices.AXIS))


def _sum_of_runs(run_J, num_runs, x_J):
  """Of each run the sum over its jobs, as a float."""
  return jnp.zeros(num_runs).at[run_J].add(x_J.astype(jnp.float32))
