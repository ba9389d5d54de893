"""Runs a planned round: devices train their lanes, then sum the results."""

import functools
from typing import Any, NamedTuple

import jax
from jax import flatten_util, lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from moon_jax import platforms
from moon_jax.algorithms.base import Each, Message, ServerCall
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT, WHOLE
from moon_jax.engine import accumulate, client_store, local, segments
from moon_jax.engine.local import RoundProgram, TrainData
from moon_jax.engine.schedule import Table
from moon_jax.engine.state import State
from moon_jax.models.base import Variables
from moon_jax.optimizers import Hyperparameters

_SPLIT_LANES = PartitionSpec(None, devices.AXIS)


def specs(data_spec: PartitionSpec) -> tuple[PartitionSpec, Table, TrainData]:
  """Returns the partition specs of the jobs' client state, table and data."""
  table = Table(
      jobs=SPLIT, num_rows=SPLIT, num_segments=SPLIT, bounds=SPLIT, own=SPLIT,
      is_personal=SPLIT, job_TL=_SPLIT_LANES, step_TL=_SPLIT_LANES,
      examples_TLB=_SPLIT_LANES)
  return SPLIT, table, TrainData(*[data_spec] * 3, frozen=WHOLE)


def placed(mesh: Mesh, data_spec: PartitionSpec, clients_J: Any, table: Table,
           data: TrainData) -> tuple[Any, Table, TrainData]:
  """Returns the arguments on the devices; `data_spec` shards the examples."""
  return jax.tree.map(
      lambda spec, part: devices.put(part, mesh, spec),
      specs(data_spec), (clients_J, table, data))


class RoundMetrics(NamedTuple):
  """The metrics of a round; per-step metrics are 0 in idle lanes."""

  loss_TL: jax.Array  # the local objective before each step
  extra_TL: dict[str, jax.Array]  # the algorithm's metrics of each step
  drift_J: jax.Array  # |w_i - w^t| after each job
  finite_J: jax.Array  # bool, whether all losses and results of the job were
  # finite; a job for which it is False is left out of the round
  finite_R: jax.Array  # bool, whether the next global model and server state
  # are finite
  server_R: dict[str, jax.Array]  # what `Algorithm.aggregate` records, [R, ...]
  cosine_R: jax.Array  # mean cosine over all pairs of updates w_i - w^t; NaN
  # if there are fewer than two
  # The next two are () unless RoundProgram.keep_models:
  cosine_J: jax.Array  # between the job's update and the mean direction
  models_J: Variables  # the models that the clients themselves use


class Round:
  """A compiled round: (state, hparams, table, data) -> (state, metrics).

  Hyperparameters are float32 [R]. `data_spec` is the sharding of the data, and
  the table's indices refer to the examples of its own device. Client state is
  updated in place. All rounds and cohorts with tables of one shape share one
  compilation.
  """

  def __init__(self, program: RoundProgram, mesh: Mesh,
               data_spec: PartitionSpec = WHOLE):
    self._mesh, self._data_spec = mesh, data_spec
    clients, table, data = specs(data_spec)
    self._specs = WHOLE, clients, WHOLE, table, data
    self._run = jax.jit(jax.shard_map(
        functools.partial(_run_round, program), mesh=mesh,
        in_specs=self._specs,
        out_specs=(WHOLE, SPLIT, RoundMetrics(
            loss_TL=_SPLIT_LANES, extra_TL=_SPLIT_LANES, drift_J=SPLIT,
            finite_J=SPLIT, finite_R=WHOLE, server_R=WHOLE, cosine_R=WHOLE,
            cosine_J=SPLIT, models_J=SPLIT)),
        check_vma=False), donate_argnums=1)

  def lower(self, shared: dict[str, Any], clients_J: Any,
            hparams: Hyperparameters, table: Table, data: TrainData
            ) -> jax.stages.Lowered:
    """Lowers the round for arguments of the given shapes.

    Arguments may be `jax.ShapeDtypeStruct`s. The devices need not exist: the
    mesh may come from a `jax.experimental.topologies` description.
    """
    def with_sharding(spec, tree):
      sharding = NamedSharding(self._mesh, spec)
      return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
          x.shape, x.dtype, sharding=sharding), tree)

    with platforms.float32_products():
      return self._run.lower(*jax.tree.map(
          with_sharding, self._specs,
          (shared, clients_J, hparams, table, data)))

  def compile(self, state: State, hparams: Hyperparameters, table: Table,
              data: TrainData) -> None:
    """Compiles the round for the shapes of these arguments.

    Afterwards a table of another shape raises an error.
    """
    jobs = table.jobs
    one_client = client_store.read(state.clients, jobs.run[:1], jobs.client[:1])
    clients_J = jax.tree.map(lambda x: jax.ShapeDtypeStruct(
        (len(jobs.run), *x.shape[1:]), x.dtype), one_client)
    self._run = self.lower(
        _shared(state), clients_J, hparams, table, data).compile()

  def temporary_bytes(self) -> int:
    """Returns the temporary bytes on each device, known after `compile`."""
    return self._run.memory_analysis().temp_size_in_bytes

  def __call__(self, state: State, hparams: Hyperparameters, table: Table,
               data: TrainData) -> tuple[State, RoundMetrics]:
    """Runs a round and waits until client state is back on the host."""
    shared, clients_J, metrics = self.start(state, hparams, table, data)
    return self.finish(state, table, shared, clients_J), metrics

  def start(self, state: State, hparams: Hyperparameters, table: Table,
            data: TrainData) -> tuple[dict[str, Any], Any, RoundMetrics]:
    """Starts a round, and does not wait for the devices.

    Returns the next state but for clients, client state of the jobs, metrics.
    """
    return self._run(*self.arguments(state, hparams, table, data))

  def arguments(self, state: State, hparams: Hyperparameters, table: Table,
                data: TrainData) -> tuple:
    """Returns the arguments of the compiled program, on the devices."""
    clients_J = client_store.read(
        state.clients, table.jobs.run, table.jobs.client)
    clients_J, table, data = placed(
        self._mesh, self._data_spec, clients_J, table, data)
    return _shared(state), clients_J, hparams, table, data

  def finish(self, state: State, table: Table, shared, clients_J) -> State:
    """Returns the state after a round, given the outputs of `start`."""
    client_store.put(state.clients, table.jobs, clients_J)
    return State(clients=state.clients, **shared)


def _shared(state):
  """Returns the state that all clients share, by name."""
  return {name: x for name, x in state._asdict().items()
          if name not in ('clients', 'history')}


def _run_round(program, shared, clients_J, hparams_R, table, data):
  program = program._replace(model=program.model.with_frozen(data.frozen))
  first_job = lax.axis_index(devices.AXIS) * len(table.jobs.run)
  table = table._replace(job_TL=jnp.where(
      table.job_TL >= 0, table.job_TL - first_job, -1))
  inputs = segments.Inputs(
      **shared, hparams=hparams_R, table=table, data=data)
  results, metrics_TL = segments.train(program, inputs, clients_J)

  jobs = table.jobs
  is_received_J = jobs.is_received & results.finite_J
  sum_per_run = functools.partial(_sum_per_run, jobs.run, inputs.num_runs)
  sums, directions, num_moved_R, num_received_R, num_left_out_R, weight_R = (
      _sum_over_devices((
          results.sums, results.directions,
          sum_per_run(results.finite_J & (results.drift_J > 0)),
          sum_per_run(is_received_J),
          sum_per_run(jobs.is_received & ~results.finite_J),
          sum_per_run(jnp.where(is_received_J, jobs.weight, 0)))))
  # The weights of a run sum to 1 over all its received jobs. If jobs were left
  # out, dividing by the sum of the remaining weights normalizes them again.
  total_weight_R = jnp.where(num_left_out_R > 0, weight_R, 1)
  sums = Message(total=sums.total.tree(), mean=jax.vmap(
      lambda mean, weight: jax.tree.map(lambda x: x / weight, mean))(
          sums.mean.tree(), total_weight_R))
  message, message_axes = _with_each(
      sums, results.each_J, jobs, is_received_J, total_weight_R)
  before = shared['variables'], shared['server']
  *after, metrics_R = jax.vmap(
      program.algorithm.aggregate, in_axes=(0, 0, message_axes, 0))(
          *before, message, _server_calls(inputs))
  # A run that received no message keeps its state.
  variables, server = jax.tree.map(
      functools.partial(accumulate.where, num_received_R > 0), tuple(after),
      before)
  cosine_J = ()
  if program.keep_models:
    cosine_J = accumulate.cosine_with_mean(
        before[0], jobs, results, directions)
  shared = {**shared, 'variables': variables, 'server': server,
            'round': shared['round'] + 1}
  return shared, results.clients_J, RoundMetrics(
      loss_TL=metrics_TL.loss, extra_TL=metrics_TL.extra,
      drift_J=results.drift_J, finite_J=results.finite_J,
      server_R=metrics_R,
      finite_R=jax.vmap(accumulate.all_finite)((variables, server)),
      # One run after another, so that sums have the same bits for any R.
      cosine_R=lax.map(
          lambda run: jax.vmap(accumulate.mean_cosine)(*run),
          jax.tree.map(lambda x_R: x_R[:, None], (directions, num_moved_R))
          )[:, 0],
      cosine_J=cosine_J,
      models_J=results.models_J.evaluated if program.keep_models else ())


def _server_calls(inputs):
  """Returns what the server of each run knows of the round, [R]."""
  keys_R = jax.vmap(lambda key, index: jax.random.fold_in(
      jax.random.fold_in(key, index), local.SERVER))(inputs.key, inputs.round)
  return ServerCall(inputs.hparams, keys_R, inputs.round)


def _with_each(sums, each_J, jobs, is_received_J, total_weight_R):
  """Returns the message of each run, and its axes for vmap.

  All runs share the rows of `Message.each`, and have their own weights.
  """
  if not jax.tree.leaves(each_J):
    return sums, 0
  # Jobs that were not received may have any values, zeros included.
  rows_J = (each_J, jobs.run, jobs.client, is_received_J,
            jobs.weight / total_weight_R[jobs.run])
  if lax.axis_size(devices.AXIS) > 1:
    rows_J = jax.tree.map(
        lambda x_J: lax.all_gather(x_J, devices.AXIS, tiled=True), rows_J)
  each_J, run_J, client_J, is_received_J, weight_J = rows_J
  is_received_RJ = is_received_J[None] & (
      run_J[None] == jnp.arange(len(total_weight_R))[:, None])
  each = Each(each_J, jnp.where(is_received_RJ, weight_J[None], 0),
              is_received_RJ, client_J)
  axes = Each(value=None, weight=0, is_received=0, client=None)
  return sums._replace(each=each), Message(0, 0, axes)


def _sum_over_devices(tree):
  """Returns the sums over all devices, by a single all-reduce of one array.

  XLA would split the all-reduce of a tree into several of about 30 MB each.
  """
  if lax.axis_size(devices.AXIS) == 1:
    return tree
  flat, unravel = flatten_util.ravel_pytree(tree)
  return unravel(lax.psum(flat, devices.AXIS))


def _sum_per_run(run_J, num_runs, x_J):
  """Returns the sum over the jobs of each run, float32 [R]."""
  return jnp.zeros(num_runs).at[run_J].add(x_J.astype(jnp.float32))
