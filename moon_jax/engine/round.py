"""Runs a planned round on the device: a loop over the rows of its table."""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Message
from moon_jax.algorithms.base import View
from moon_jax.engine import local
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
  cosine_R: jax.Array  # mean cosine between two updates w_i - w^t; NaN of one
  # Of each job, () unless Program.keep_models:
  cosine_J: jax.Array  # between its update and the mean of all directions
  models_J: Variables  # its local model


class _Done(NamedTuple):
  """What the jobs done so far leave."""

  clients: Any  # what all clients keep, [R, C, ...]
  sums: Message  # received, [R, ...]
  directions: Any  # sum of (w_i - w^t) / |w_i - w^t|, [R, ...]
  drift_J: jax.Array
  models_J: Variables


class _Carry(NamedTuple):
  """What the loop over rows carries."""

  lanes: Lane  # the jobs in training, [L, ...]
  done: _Done
  loss_TL: jax.Array
  extra_TL: dict[str, jax.Array]


RoundFn = Callable[[State, Hyperparameters, Table, TrainData],
                   tuple[State, RoundMetrics]]


def make_round(program: Program) -> RoundFn:
  """Compiles a round of `program`: (state, hparams_R, table, data) -> ....

  Hyperparameters are float32 [R]; the state's buffers are given up. One
  compilation serves all rounds and cohorts whose tables have one shape.
  """
  return jax.jit(functools.partial(_run_round, program), donate_argnums=0)


def _run_round(program, state, hparams_R, table, data):
  """A round, State -> State, and what it records."""
  jobs, num_runs = table.jobs, state.key.shape[0]

  def start_job(clients, j):
    run, client = jobs.run[j], jobs.client[j]
    of_run = functools.partial(jax.tree.map, lambda x_R: x_R[run])
    view = View(
        variables=of_run(state.variables),
        server=program.algorithm.broadcast(of_run(state.server)),
        client=jax.tree.map(lambda x_RC: x_RC[run, client], clients),
        hparams=of_run(hparams_R),
        num_examples=jobs.num_examples[j],
        num_steps=jobs.num_steps[j])
    key = jax.random.fold_in(state.key[run], state.round)
    return local.start(program, view, jax.random.fold_in(key, client))

  def start_jobs(first_L, job_L, lanes, clients):
    started = jax.vmap(functools.partial(start_job, clients))(job_L)
    return jax.tree.map(functools.partial(_where, first_L), started, lanes)

  def step_lanes(t, lanes):
    examples_LB = table.examples_TLB[t]
    real_LB = (examples_LB >= 0).astype(jnp.float32)
    examples_LB = jnp.maximum(examples_LB, 0)
    return jax.vmap(functools.partial(local.step, program))(
        lanes, table.step_TL[t],
        jax.tree.map(lambda x_N: x_N[examples_LB], data), real_LB)

  def finish_jobs(last_L, job_L, lanes, done):
    client_L, message_L, update_L = jax.vmap(
        functools.partial(local.finish, program))(lanes)
    run_L = jobs.run[job_L]
    slot_L = jnp.where(last_L, jobs.client[job_L], _NOWHERE)
    clients = jax.tree.map(
        lambda x_RC, x_L: x_RC.at[run_L, slot_L].set(x_L, mode='drop'),
        done.clients, client_L)
    done_RL = last_L[None] & (run_L[None] == jnp.arange(num_runs)[:, None])
    received_RL = done_RL & jobs.is_received[job_L][None]
    weight_L = jobs.weight[job_L]
    sums = Message(
        mean=_add_weighted(
            done.sums.mean, received_RL, weight_L, message_L.mean),
        total=_add_weighted(
            done.sums.total, received_RL, jnp.ones_like(weight_L),
            message_L.total))
    drift_L = jax.vmap(optax.tree.norm)(update_L)
    directions = _add_weighted(
        done.directions, done_RL, 1 / jnp.maximum(drift_L, _TINY), update_L)
    slot_L = jnp.where(last_L, job_L, _NOWHERE)
    drift_J, models_J = jax.tree.map(
        lambda x_J, x_L: x_J.at[slot_L].set(x_L, mode='drop'),
        (done.drift_J, done.models_J),
        (drift_L, lanes.variables if program.keep_models else ()))
    return _Done(clients, sums, directions, drift_J, models_J)

  def run_row(t, carry):
    lanes, done = carry.lanes, carry.done
    active_L = table.job_TL[t] >= 0
    job_L = jnp.maximum(table.job_TL[t], 0)
    first_L = active_L & (table.step_TL[t] == 0)
    last_L = active_L & (table.step_TL[t] == jobs.num_steps[job_L] - 1)

    lanes = lax.cond(
        jnp.any(first_L), start_jobs, lambda _0, _1, lanes, _2: lanes,
        first_L, job_L, lanes, done.clients)
    lanes, step_metrics = step_lanes(t, lanes)
    done = lax.cond(
        jnp.any(last_L), finish_jobs, lambda _0, _1, _2, done: done,
        last_L, job_L, lanes, done)

    loss_TL, extra_TL = jax.tree.map(
        lambda trace_TL, x_L: trace_TL.at[t].set(jnp.where(active_L, x_L, 0)),
        (carry.loss_TL, carry.extra_TL), tuple(step_metrics))
    return _Carry(lanes, done, loss_TL, extra_TL)

  num_lanes = table.job_TL.shape[1]
  lanes = jax.vmap(functools.partial(start_job, state.clients))(
      jnp.zeros(num_lanes, jnp.int32))
  loss_TL, extra_TL = _zeros_of_metrics(step_lanes, lanes, table)
  carry = lax.fori_loop(0, table.num_rows, run_row, _Carry(
      lanes, _nothing_done(program, state, lanes, jobs), loss_TL, extra_TL))
  done = carry.done

  variables, server = jax.vmap(program.algorithm.aggregate)(
      state.variables, state.server, done.sums)
  # A run of which nothing was received stays as it is.
  is_moved_R = jnp.zeros(num_runs, bool).at[jobs.run].max(jobs.is_received)
  variables, server = jax.tree.map(
      functools.partial(_where, is_moved_R),
      (variables, server), (state.variables, state.server))
  num_moved_R = jnp.zeros(num_runs).at[jobs.run].add(
      (done.drift_J > 0).astype(jnp.float32))
  cosine_R = jax.vmap(_mean_cosine)(done.directions, num_moved_R)
  cosine_J = ()
  if program.keep_models:
    cosine_J = _cosine_with_mean(state.variables, jobs, done)
  state = State(variables, server, done.clients, state.round + 1, state.key)
  return state, RoundMetrics(carry.loss_TL, carry.extra_TL, done.drift_J,
                             cosine_R, cosine_J, done.models_J)


def _mean_cosine(sum_of_directions, n):
  """The mean of u_i . u_j over the pairs of n unit vectors, from their sum."""
  return ((optax.tree.norm(sum_of_directions, squared=True) - n)
          / (n * (n - 1)))


def _cosine_with_mean(variables, jobs, done):
  """Of each job's update with the sum of all jobs' directions; 0 of none."""
  def of_job(run, model, drift):
    update = jax.tree.map(
        lambda w, w_R: w - w_R[run], model['params'], variables['params'])
    direction = jax.tree.map(lambda x_R: x_R[run], done.directions)
    return optax.tree.vdot(update, direction) / jnp.maximum(
        drift * optax.tree.norm(direction), _TINY)

  return jax.vmap(of_job)(jobs.run, done.models_J, done.drift_J)


def _where(condition_L, x_L, y_L):
  """x where the condition on the first axis holds, else y."""
  ones = (1,) * (x_L.ndim - 1)
  return jnp.where(condition_L.reshape(-1, *ones), x_L, y_L)


def _add_weighted(sums, done_RL, weight_L, values):
  """sum_r + sum_l weight_l x_l over the lanes that have done a job of run r.

  The others are masked, not weighted by 0: theirs may be NaN.
  """
  def add_leaf(sum_R, x_L):
    def add_run(sum_and_done):
      total, done_L = sum_and_done
      x_done_L = _where(done_L, x_L, jnp.zeros_like(x_L))
      return total + jnp.einsum('l,l...->...', weight_L, x_done_L,
                                precision=lax.Precision.HIGHEST)

    return lax.map(add_run, (sum_R, done_RL))

  return jax.tree.map(add_leaf, sums, values)


def _nothing_done(program, state, lanes, jobs):
  """Of no job yet: zeros, and the clients as they are."""
  num_runs, num_jobs = state.key.shape[0], jobs.run.shape[0]
  _, message_L, update_L = jax.eval_shape(
      jax.vmap(functools.partial(local.finish, program)), lanes)

  def zeros(length, tree_L):
    return jax.tree.map(
        lambda x_L: jnp.zeros((length, *x_L.shape[1:]), x_L.dtype), tree_L)

  return _Done(
      clients=state.clients,
      sums=zeros(num_runs, message_L),
      directions=zeros(num_runs, update_L),
      drift_J=jnp.zeros(num_jobs),
      models_J=zeros(
          num_jobs, lanes.variables if program.keep_models else ()))


def _zeros_of_metrics(step_lanes, lanes, table):
  _, step_metrics = jax.eval_shape(step_lanes, 0, lanes)
  num_rows = table.job_TL.shape[0]
  return jax.tree.map(
      lambda x_L: jnp.zeros((num_rows, *x_L.shape), x_L.dtype),
      tuple(step_metrics))
