"""Runs a planned round: devices train their lanes, then sum the results."""

import functools
from typing import Any, NamedTuple

import jax
from jax import flatten_util, lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from moon_jax import debugging, platforms
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Each, Message, ServerCall
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT, WHOLE
from moon_jax.engine import (
  accumulate,
  client_store,
  local,
  model_stack,
  segments,
)
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
  server_R: dict[str, jax.Array]  # what `Algorithm.aggregate` and
  # `Topology.mix` record, [R, ...]; the former [R, M, ...] of M models
  cosine_R: jax.Array  # mean cosine over all pairs of updates w_i - w^t; NaN
  # if there are fewer than two
  model_J: jax.Array  # int32, the model of each job among the M of its run, as
  # `Topology.choose` returned it; () if M is 1
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
    self._run = devices.sharded(
        functools.partial(_run_round, program), mesh, self._specs,
        (WHOLE, SPLIT, RoundMetrics(
            loss_TL=_SPLIT_LANES, extra_TL=_SPLIT_LANES, drift_J=SPLIT,
            finite_J=SPLIT, finite_R=WHOLE, server_R=WHOLE, cosine_R=WHOLE,
            model_J=SPLIT, cosine_J=SPLIT, models_J=SPLIT)),
        program.debug, donate_argnums=1)

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
  first_job = 0 if program.debug else (
      lax.axis_index(devices.AXIS) * len(table.jobs.run))
  table = table._replace(job_TL=jnp.where(
      table.job_TL >= 0, table.job_TL - first_job, -1))
  inputs = model_stack.stacked(program, segments.Inputs(
      **shared, hparams=hparams_R, table=table, data=data))
  results, metrics_TL = segments.train(program, inputs, clients_J)

  jobs, num_models = table.jobs, program.topology.num_models
  is_received_J = jobs.is_received & results.finite_J
  sum_per_model = functools.partial(
      _sum_per, inputs.model_J, inputs.num_stacked)
  sums, directions, num_moved_R, num_received_G, num_left_out_G, weight_G = (
      _sum_over_devices((
          results.sums, results.directions,
          _sum_per(jobs.run, inputs.num_runs,
                   results.finite_J & (results.drift_J > 0)),
          sum_per_model(is_received_J),
          sum_per_model(jobs.is_received & ~results.finite_J),
          sum_per_model(jnp.where(is_received_J, jobs.weight, 0)))))
  # The weights of a run sum to 1 over all its received jobs. If jobs were left
  # out, or have another model, dividing by the sum of the remaining weights
  # normalizes them again.
  total_weight_G = jnp.where(
      (num_left_out_G > 0) | (num_models > 1), weight_G, 1)
  sums = Message(total=sums.total.tree(), mean=jax.vmap(
      lambda mean, weight: jax.tree.map(lambda x: x / weight, mean))(
          sums.mean.tree(), total_weight_G))
  message = _with_each(
      sums, results.each_J, inputs, is_received_J, total_weight_G)
  cosine_J: Any = ()
  if program.keep_models:
    cosine_J = accumulate.cosine_with_mean(
        inputs.variables, inputs.model_J, jobs, results, directions)
  changed, metrics_R = _aggregated(program, inputs, message, num_received_G)
  if num_models > 1:
    mixed = model_stack.mixed(
        program, inputs, shared['variables'], changed['variables'], weight_G,
        _server_keys(inputs),
        results.models_J.local if program.keep_models else (), is_received_J)
    changed |= _of_mixed(mixed, shared['server'], changed['server'])
    metrics_R = {**metrics_R, **mixed.metrics}
  shared = {**shared, **changed, 'round': shared['round'] + 1}
  return shared, results.clients_J, RoundMetrics(
      loss_TL=metrics_TL.loss, extra_TL=metrics_TL.extra,
      drift_J=results.drift_J, finite_J=results.finite_J,
      server_R=metrics_R,
      finite_R=jax.vmap(accumulate.all_finite)((
          shared['variables'], shared['server'])),
      # One run after another, so that sums have the same bits for any R.
      cosine_R=lax.map(
          lambda run: jax.vmap(accumulate.mean_cosine)(*run),
          jax.tree.map(lambda x_R: x_R[:, None], (directions, num_moved_R))
          )[:, 0],
      model_J=inputs.choice_J, cosine_J=cosine_J,
      models_J=results.models_J.evaluated if program.keep_models else ())


def _of_mixed(mixed, server_before, server):
  """Returns the fields of the state that mixing changes."""
  return {'variables': mixed.models, 'topology': mixed.state,
          'server': jax.tree.map(
              functools.partial(mixing.where, mixed.keeps_server),
              server_before, server)}


def _aggregated(program, inputs, message, num_received_G):
  """Returns the next models and server state of each run, and its metrics."""
  num_models = program.topology.num_models
  before = inputs.variables, inputs.server
  *after, metrics_G = debugging.vmap(
      program.algorithm.aggregate, in_axes=(0, 0, message.axes, 0))(
          *before, message.value, _server_calls(inputs, num_models))
  # A model that received no message is kept, and so is its server state.
  after = jax.tree.map(
      functools.partial(mixing.where, num_received_G > 0), tuple(after),
      before)
  changed = dict(zip(('variables', 'server'), after))
  if num_models == 1:
    return changed, metrics_G
  return jax.tree.map(
      lambda x_G: x_G.reshape(-1, num_models, *x_G.shape[1:]),
      (changed, metrics_G))


def _server_keys(inputs):
  """Returns the key of each run and round, for its server, [R]."""
  return jax.vmap(lambda key, index: jax.random.fold_in(
      jax.random.fold_in(key, index), local.SERVER))(inputs.key, inputs.round)


def _server_calls(inputs, num_models):
  """Returns what the server knows of the round for each model, [G]."""
  calls = ServerCall(inputs.hparams, _server_keys(inputs), inputs.round)
  if num_models == 1:
    return calls
  calls = jax.tree.map(lambda x_R: jnp.repeat(x_R, num_models, axis=0), calls)
  return calls._replace(key=jax.vmap(jax.random.fold_in)(
      calls.key, jnp.arange(len(calls.round)) % num_models))


class _Messages(NamedTuple):
  """The message that each model received."""

  value: Message  # [G, ...]
  axes: Any  # of vmap over them


def _with_each(sums, each_J, inputs, is_received_J, total_weight_G):
  """Returns the messages with the rows of `Message.each`.

  All models share the rows of `Message.each`, and have their own weights.
  """
  if not jax.tree.leaves(each_J):
    return _Messages(sums, 0)
  # Jobs that were not received may have any values, zeros included.
  jobs, model_J = inputs.table.jobs, inputs.model_J
  rows_J = (each_J, model_J, jobs.client, is_received_J,
            jobs.weight / total_weight_G[model_J])
  if not debugging.is_on() and lax.axis_size(devices.AXIS) > 1:
    rows_J = jax.tree.map(
        lambda x_J: lax.all_gather(x_J, devices.AXIS, tiled=True), rows_J)
  each_J, model_J, client_J, is_received_J, weight_J = rows_J
  is_received_GJ = is_received_J[None] & (
      model_J[None] == jnp.arange(len(total_weight_G))[:, None])
  each = Each(each_J, jnp.where(is_received_GJ, weight_J[None], 0),
              is_received_GJ, client_J)
  axes = Each(value=None, weight=0, is_received=0, client=None)
  return _Messages(sums._replace(each=each), Message(0, 0, axes))


def _sum_over_devices(tree):
  """Returns the sums over all devices, by a single all-reduce of one array.

  XLA would split the all-reduce of a tree into several of about 30 MB each.
  """
  if debugging.is_on() or lax.axis_size(devices.AXIS) == 1:
    return tree
  flat, unravel = flatten_util.ravel_pytree(tree)
  return unravel(lax.psum(flat, devices.AXIS))


def _sum_per(owner_J, count, x_J):
  """Returns the sum over the jobs of each run or model, float32 [count]."""
  return jnp.zeros(count).at[owner_J].add(x_J.astype(jnp.float32))
