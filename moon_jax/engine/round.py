"""Runs a planned round on the device: a loop over the rows of its table."""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms.base import Message
from moon_jax.algorithms.base import View
from moon_jax.engine import local
from moon_jax.engine.local import Lane
from moon_jax.engine.local import Program
from moon_jax.engine.schedule import Table
from moon_jax.engine.state import State
from moon_jax.optimizers import Hyperparameters

_NOWHERE = jnp.iinfo(jnp.int32).max  # an index at which a write is dropped


class TrainData(NamedTuple):
  """The training set on the device, as stored."""

  images: jax.Array  # uint8 [N, H, W, C]
  labels: jax.Array  # int32 [N]


class RoundMetrics(NamedTuple):
  """What a round records; 0 where a lane was idle."""

  loss_TL: jax.Array  # the local objective before each step
  extra_TL: dict[str, jax.Array]  # the algorithm's own scalars, likewise
  drift_J: jax.Array  # |w_i - w^t| after each job


class _Carry(NamedTuple):
  """What the loop over rows carries."""

  lanes: Lane  # the jobs in training, [L, ...]
  clients: Any  # what all clients keep, [R, C, ...]
  sums: Message  # of the jobs done so far, [R, ...]
  metrics: RoundMetrics


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
        lanes, table.step_TL[t], data.images[examples_LB],
        data.labels[examples_LB], real_LB)

  def finish_jobs(last_L, job_L, lanes, clients, sums, drift_J):
    client_L, message_L, drift_L = jax.vmap(
        functools.partial(local.finish, program))(lanes)
    run_L = jobs.run[job_L]
    slot_L = jnp.where(last_L, jobs.client[job_L], _NOWHERE)
    clients = jax.tree.map(
        lambda x_RC, x_L: x_RC.at[run_L, slot_L].set(x_L, mode='drop'),
        clients, client_L)
    done_RL = last_L[None] & (run_L[None] == jnp.arange(num_runs)[:, None])
    weight_L = jobs.weight[job_L]
    sums = Message(
        mean=_add_weighted(sums.mean, done_RL, weight_L, message_L.mean),
        total=_add_weighted(
            sums.total, done_RL, jnp.ones_like(weight_L), message_L.total))
    drift_J = drift_J.at[jnp.where(last_L, job_L, _NOWHERE)].set(
        drift_L, mode='drop')
    return clients, sums, drift_J

  def run_row(t, carry):
    lanes, clients, sums, metrics = carry
    active_L = table.job_TL[t] >= 0
    job_L = jnp.maximum(table.job_TL[t], 0)
    first_L = active_L & (table.step_TL[t] == 0)
    last_L = active_L & (table.step_TL[t] == jobs.num_steps[job_L] - 1)

    lanes = lax.cond(
        jnp.any(first_L), start_jobs, lambda _0, _1, lanes, _2: lanes,
        first_L, job_L, lanes, clients)
    lanes, step_metrics = step_lanes(t, lanes)
    clients, sums, drift_J = lax.cond(
        jnp.any(last_L), finish_jobs, lambda _0, _1, _2, *kept: kept,
        last_L, job_L, lanes, clients, sums, metrics.drift_J)

    loss_TL, extra_TL = jax.tree.map(
        lambda trace_TL, x_L: trace_TL.at[t].set(jnp.where(active_L, x_L, 0)),
        (metrics.loss_TL, metrics.extra_TL), tuple(step_metrics))
    metrics = RoundMetrics(loss_TL, extra_TL, drift_J)
    return _Carry(lanes, clients, sums, metrics)

  num_lanes = table.job_TL.shape[1]
  lanes = jax.vmap(functools.partial(start_job, state.clients))(
      jnp.zeros(num_lanes, jnp.int32))
  carry = lax.fori_loop(0, table.num_rows, run_row, _Carry(
      lanes=lanes,
      clients=state.clients,
      sums=_zeros_of_messages(program, lanes, num_runs),
      metrics=_zeros_of_metrics(step_lanes, lanes, table)))

  variables, server = jax.vmap(program.algorithm.aggregate)(
      state.variables, state.server, carry.sums)
  # A run without a job in this table stays as it is.
  took_part_R = jnp.zeros(num_runs, bool).at[jobs.run].set(True)
  variables, server = jax.tree.map(
      functools.partial(_where, took_part_R),
      (variables, server), (state.variables, state.server))
  state = State(variables, server, carry.clients, state.round + 1, state.key)
  return state, carry.metrics


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


def _zeros_of_messages(program, lanes, num_runs):
  _, message_L, _ = jax.eval_shape(
      jax.vmap(functools.partial(local.finish, program)), lanes)
  return jax.tree.map(
      lambda x: jnp.zeros((num_runs, *x.shape[1:]), x.dtype), message_L)


def _zeros_of_metrics(step_lanes, lanes, table):
  _, (loss_L, extra_L) = jax.eval_shape(step_lanes, 0, lanes)
  num_rows = table.job_TL.shape[0]
  zeros = lambda x_L: jnp.zeros((num_rows, *x_L.shape), x_L.dtype)
  return RoundMetrics(zeros(loss_L), jax.tree.map(zeros, extra_L),
                      jnp.zeros(table.jobs.run.shape, jnp.float32))
