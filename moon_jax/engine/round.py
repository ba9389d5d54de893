"""Runs a planned round: on each device a loop over the rows of its lanes."""

import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec
import optax

from moon_jax.algorithms.base import Message
from moon_jax.algorithms.base import View
from moon_jax.engine import devices
from moon_jax.engine import local
from moon_jax.engine import store
from moon_jax.engine.devices import SPLIT
from moon_jax.engine.devices import WHOLE
from moon_jax.engine.local import Lane
from moon_jax.engine.local import Program
from moon_jax.engine.local import TrainData
from moon_jax.engine.schedule import Table
from moon_jax.engine.state import State
from moon_jax.models.base import Variables
from moon_jax.optimizers import Hyperparameters

_NOWHERE = jnp.iinfo(jnp.int32).max  # an index at which a write is dropped
_TINY = jnp.finfo(jnp.float32).tiny


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


class _Done(NamedTuple):
  """What the jobs of a device done so far leave."""

  clients_J: Any  # what their clients keep
  sums: Message  # received, [R, ...]
  directions: Any  # sum of (w_i - w^t) / |w_i - w^t|, [R, ...]
  drift_J: jax.Array
  finite_J: jax.Array
  models_J: Variables


class _Carry(NamedTuple):
  """What the loop over rows carries."""

  lanes: Lane  # the jobs in training, [L, ...]
  done: _Done
  loss_TL: jax.Array
  extra_TL: dict[str, jax.Array]


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
        jobs=SPLIT, num_rows=SPLIT, own=SPLIT,
        job_TL=of_lanes, step_TL=of_lanes, examples_TLB=of_lanes)
    self._mesh, self._data_spec = mesh, data_spec
    self._run = jax.jit(jax.shard_map(
        functools.partial(_run_round, program), mesh=mesh,
        in_specs=(WHOLE, SPLIT, WHOLE, table, data_spec),
        out_specs=(WHOLE, SPLIT, RoundMetrics(
            loss_TL=of_lanes, extra_TL=of_lanes, drift_J=SPLIT, finite_J=SPLIT,
            finite_R=WHOLE, cosine_R=WHOLE, cosine_J=SPLIT, models_J=SPLIT)),
        check_vma=False), donate_argnums=1)

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
    store.put(state.clients, table.jobs, clients_J)
    return State(clients=state.clients, **shared)

  def _on_devices(self, state, hparams, table, data):
    clients_J = devices.put(
        store.take(state.clients, table.jobs), self._mesh, SPLIT)
    table = Table(*[
        devices.put(part, self._mesh, spec)
        for part, spec in zip(table, self._table)])
    data = devices.put(data, self._mesh, self._data_spec)
    shared = state._asdict()
    del shared['clients']
    return shared, clients_J, hparams, table, data


def _run_round(program, shared, clients_J, hparams_R, table, data):
  """A round on one device: its lanes, its jobs, and sums over all devices."""
  jobs, num_runs = table.jobs, shared['key'].shape[0]
  first_job = lax.axis_index(devices.AXIS) * len(jobs.run)

  def view_of(clients_J, j):
    run = jobs.run[j]
    of_run = functools.partial(jax.tree.map, lambda x_R: x_R[run])
    return View(
        variables=of_run(shared['variables']),
        server=program.algorithm.broadcast(of_run(shared['server'])),
        client=jax.tree.map(lambda x_J: x_J[j], clients_J),
        hparams=of_run(hparams_R),
        num_examples=jobs.num_examples[j],
        num_steps=jobs.num_steps[j])

  def start_job(clients_J, j):
    key = jax.random.fold_in(shared['key'][jobs.run[j]], shared['round'])
    return local.start(program, view_of(clients_J, j),
                       jax.random.fold_in(key, jobs.client[j]))

  @jax.jit  # for one trace of all places, as `step_lanes`
  def start_lanes(clients_J, job_L):
    return jax.vmap(functools.partial(start_job, clients_J))(job_L)

  def start_jobs(first_L, job_L, lanes, clients_J):
    started = start_lanes(clients_J, job_L)
    return jax.tree.map(functools.partial(_where, first_L), started, lanes)

  @jax.jit
  def step_lanes(t, lanes):
    stored, real_LB = _examples(data, table.examples_TLB[t])
    known = ()
    if program.freeze_once:
      run_L = jobs.run[jnp.maximum(table.job_TL[t] - first_job, 0)]
      at_LB = run_L[:, None], jnp.maximum(table.examples_TLB[t], 0)
      known = jax.tree.map(
          lambda x_RN: _only(real_LB, x_RN[at_LB]), frozen_RN),
    return jax.vmap(functools.partial(local.step, program))(
        lanes, table.step_TL[t], stored, real_LB, *known)

  def finish_jobs(last_L, job_L, lanes, done):
    client_L, message_L, update_L = jax.vmap(
        functools.partial(local.finish, program))(lanes)
    run_L = jobs.run[job_L]
    drift_L = jax.vmap(optax.tree.norm)(update_L)
    finite_L = lanes.is_finite & jax.vmap(_all_finite)(
        (client_L, message_L, update_L, drift_L))
    done_L = last_L & finite_L
    done_RL = done_L[None] & (run_L[None] == jnp.arange(num_runs)[:, None])
    received_RL = done_RL & jobs.is_received[job_L][None]
    weight_L = jobs.weight[job_L]
    sums = Message(
        mean=_add_weighted(
            done.sums.mean, received_RL, weight_L, message_L.mean),
        total=_add_weighted(
            done.sums.total, received_RL, jnp.ones_like(weight_L),
            message_L.total))
    directions = _add_weighted(
        done.directions, done_RL, 1 / jnp.maximum(drift_L, _TINY), update_L)

    def write(is_written_L, tree_J, tree_L):
      slot_L = jnp.where(is_written_L, job_L, _NOWHERE)
      return jax.tree.map(
          lambda x_J, x_L: x_J.at[slot_L].set(x_L, mode='drop'), tree_J, tree_L)

    clients_J, models_J = write(
        done_L, (done.clients_J, done.models_J),
        (client_L, lanes.variables if program.keep_models else ()))
    drift_J, finite_J = write(
        last_L, (done.drift_J, done.finite_J), (drift_L, finite_L))
    return _Done(clients_J, sums, directions, drift_J, finite_J, models_J)

  def run_row(t, carry):
    lanes, done = carry.lanes, carry.done
    active_L = table.job_TL[t] >= 0
    job_L = jnp.maximum(table.job_TL[t] - first_job, 0)
    first_L = active_L & (table.step_TL[t] == 0)
    last_L = active_L & (table.step_TL[t] == jobs.num_steps[job_L] - 1)

    lanes = lax.cond(
        jnp.any(first_L), start_jobs, lambda _0, _1, lanes, _2: lanes,
        first_L, job_L, lanes, done.clients_J)
    lanes, step_metrics = step_lanes(t, lanes)
    done = lax.cond(
        jnp.any(last_L), finish_jobs, lambda _0, _1, _2, done: done,
        last_L, job_L, lanes, done)

    loss_TL, extra_TL = jax.tree.map(
        lambda trace_TL, x_L: trace_TL.at[t].set(jnp.where(active_L, x_L, 0)),
        (carry.loss_TL, carry.extra_TL), tuple(step_metrics))
    return _Carry(lanes, done, loss_TL, extra_TL)

  frozen_RN = ()
  if program.freeze_once:
    frozen_RN = _frozen(
        program, data, table.own, num_runs, jobs.run,
        functools.partial(view_of, clients_J))
  num_lanes = table.job_TL.shape[1]
  lanes = start_lanes(clients_J, jnp.zeros(num_lanes, jnp.int32))
  loss_TL, extra_TL = _zeros_of_metrics(step_lanes, lanes, table)
  # From an int32: from 0, rows would have a weak type and be traced anew.
  carry = lax.fori_loop(jnp.int32(0), table.num_rows[0], run_row, _Carry(
      lanes, _nothing_done(
          program, clients_J, lanes, num_runs, len(jobs.run)),
      loss_TL, extra_TL))
  done = carry.done

  is_received_J = jobs.is_received & done.finite_J
  of_runs = functools.partial(_sum_of_runs, jobs.run, num_runs)
  sums, directions, num_moved_R, num_received_R, num_left_out_R, weight_R = (
      lax.psum((
          done.sums, done.directions,
          of_runs(done.finite_J & (done.drift_J > 0)), of_runs(is_received_J),
          of_runs(jobs.is_received & ~done.finite_J),
          of_runs(jnp.where(is_received_J, jobs.weight, 0))), devices.AXIS))
  # Weights are of all that were to be received: others share what is missing.
  all_weight_R = jnp.where(num_left_out_R > 0, weight_R, 1)
  sums = sums._replace(mean=jax.vmap(
      lambda mean, weight: jax.tree.map(lambda x: x / weight, mean))(
          sums.mean, all_weight_R))
  before = shared['variables'], shared['server']
  after = jax.vmap(program.algorithm.aggregate)(*before, sums)
  # A run of which nothing was received stays as it is.
  variables, server = jax.tree.map(
      functools.partial(_where, num_received_R > 0), after, before)
  cosine_R = jax.vmap(_mean_cosine)(directions, num_moved_R)
  cosine_J = ()
  if program.keep_models:
    cosine_J = _cosine_with_mean(before[0], jobs, done, directions)
  shared = {**shared, 'variables': variables, 'server': server,
            'round': shared['round'] + 1}
  return shared, done.clients_J, RoundMetrics(
      carry.loss_TL, carry.extra_TL, done.drift_J, done.finite_J,
      jax.vmap(_all_finite)((variables, server)), cosine_R, cosine_J,
      done.models_J)


def _examples(data, index):
  """Examples by index, padding for -1; and 0 for it, 1 for the others."""
  at, real = jnp.maximum(index, 0), (index >= 0).astype(jnp.float32)

  def take(x_N):
    x = x_N[at]
    is_number = jnp.issubdtype(x.dtype, jnp.floating)
    return _only(real, x) if is_number else x

  return jax.tree.map(take, data), real


def _only(real, x):
  """What is real, and 0 for padding, which may be another client's NaN: even
  masked in a loss it would be one in its gradient."""
  return jnp.where(real.reshape(real.shape + (1,) * (x.ndim - real.ndim)) > 0,
                   x, 0)


def _frozen(program, data, own, num_runs, run_J, view_of):
  """What frozen models say of all examples of the jobs, at [R, N, ...]."""
  def of_batch(j, s):
    stored, real_B = _examples(data, own.index_JSB[j, s])
    return local.frozen(program, view_of(j), stored, real_B)

  def of_job(j, known_RN):
    def add(s, known_RN):
      index_B = own.index_JSB[j, s]
      slot_B = jnp.where(index_B >= 0, index_B, _NOWHERE)
      return jax.tree.map(
          lambda x_RN, x_B: x_RN.at[run_J[j], slot_B].set(x_B, mode='drop'),
          known_RN, of_batch(j, s))

    return lax.fori_loop(0, own.num_batches_J[j], add, known_RN)

  known_RN = jax.tree.map(
      lambda x_B: jnp.zeros(
          (num_runs, len(data.labels), *x_B.shape[1:]), x_B.dtype),
      jax.eval_shape(of_batch, 0, 0))
  return lax.fori_loop(0, len(run_J), of_job, known_RN)


def _sum_of_runs(run_J, num_runs, x_J):
  """Of each run the sum over its jobs, as a float."""
  return jnp.zeros(num_runs).at[run_J].add(x_J.astype(jnp.float32))


def _all_finite(tree):
  """Whether no number of the tree is NaN or infinite."""
  return jnp.all(jnp.stack([jnp.array(True)] + [
      jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)
      if jnp.issubdtype(x.dtype, jnp.inexact)]))


def _mean_cosine(sum_of_directions, n):
  """The mean of u_i . u_j over the pairs of n unit vectors, from their sum."""
  return ((optax.tree.norm(sum_of_directions, squared=True) - n)
          / (n * (n - 1)))


def _cosine_with_mean(variables, jobs, done, directions):
  """Of each job's update with the sum of all jobs' directions; 0 of none."""
  def of_job(run, model, drift):
    update = jax.tree.map(
        lambda w, w_R: w - w_R[run], model['params'], variables['params'])
    direction = jax.tree.map(lambda x_R: x_R[run], directions)
    return optax.tree.vdot(update, direction) / jnp.maximum(
        drift * optax.tree.norm(direction), _TINY)

  return jax.vmap(of_job)(jobs.run, done.models_J, done.drift_J)


def _where(condition_L, x_L, y_L):
  """x where the condition on the first axis holds, else y."""
  ones = (1,) * (x_L.ndim - 1)
  return jnp.where(condition_L.reshape(-1, *ones), x_L, y_L)


def _add_weighted(sums, done_RL, weight_L, values):
  """sum_r + sum_l weight_l x_l over the lanes that have done a job of run r.

  The others are masked, not weighted by 0: theirs may be NaN, weights too.
  """
  def add_leaf(sum_R, x_L):
    def add_run(sum_and_done):
      total, done_L = sum_and_done
      x_done_L = _where(done_L, x_L, jnp.zeros_like(x_L))
      weight_done_L = jnp.where(done_L, weight_L, 0)
      return total + jnp.einsum('l,l...->...', weight_done_L, x_done_L,
                                precision=lax.Precision.HIGHEST)

    return lax.map(add_run, (sum_R, done_RL))

  return jax.tree.map(add_leaf, sums, values)


def _nothing_done(program, clients_J, lanes, num_runs, num_jobs):
  """Of no job yet: zeros, and the clients as they are."""
  _, message_L, update_L = jax.eval_shape(
      jax.vmap(functools.partial(local.finish, program)), lanes)

  def zeros(length, tree_L):
    return jax.tree.map(
        lambda x_L: jnp.zeros((length, *x_L.shape[1:]), x_L.dtype), tree_L)

  return _Done(
      clients_J=clients_J,
      sums=zeros(num_runs, message_L),
      directions=zeros(num_runs, update_L),
      drift_J=jnp.zeros(num_jobs),
      finite_J=jnp.ones(num_jobs, bool),
      models_J=zeros(
          num_jobs, lanes.variables if program.keep_models else ()))


def _zeros_of_metrics(step_lanes, lanes, table):
  _, step_metrics = jax.eval_shape(step_lanes, jnp.int32(0), lanes)
  num_rows = table.job_TL.shape[0]
  return jax.tree.map(
      lambda x_L: jnp.zeros((num_rows, *x_L.shape), x_L.dtype),
      tuple(step_metrics))
