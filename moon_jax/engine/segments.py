"""Trains the jobs of one device on its lanes, segment by segment.

A segment is a run of consecutive rows in which no job starts after the first
row or ends before the last. Each lane has one job, or none, throughout it and
only takes steps. So the device loops over segments, and over the rows of each:

    for each segment:
      start the jobs that begin at its first row
      for each of its rows: one local step on every lane
      accumulate the results of the jobs that end at its last row

The inner loop carries models, optimizers and metrics; client state, views and
sums stay outside of it, as does everything that depends on starts and ends.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms.base import View
from moon_jax.engine import accumulate
from moon_jax.engine import local
from moon_jax.engine.accumulate import Accumulators
from moon_jax.engine.local import Job
from moon_jax.engine.local import Program
from moon_jax.engine.local import StepMetrics
from moon_jax.engine.local import TrainData
from moon_jax.engine.schedule import Table
from moon_jax.models.base import Variables
from moon_jax.optimizers import Hyperparameters

_NOWHERE = jnp.iinfo(jnp.int32).max  # an index at which a write is dropped


class Inputs(NamedTuple):
  """What a round reads on one device; job indices count from its first job."""

  variables: Variables  # the global models, [R, ...]
  server: Any  # server state, [R, ...]
  round: jax.Array  # int32 scalar, from 0
  key: jax.Array  # keys [R]
  hparams: Hyperparameters  # [R]
  table: Table
  data: TrainData

  @property
  def num_runs(self) -> int:
    return self.key.shape[0]


def train(program: Program, inputs: Inputs, clients_J: Any
          ) -> tuple[Accumulators, StepMetrics]:
  """Trains all jobs of a device.

  Args:
    program: what is fixed.
    inputs: what the round reads.
    clients_J: client state of the jobs, before the round.

  Returns:
    What the jobs leave, and the metrics of each step, [T, L], 0 where a lane
    was idle.
  """
  table = inputs.table
  frozen_RN = ()
  if program.freeze_once:
    frozen_RN = _frozen(program, inputs, clients_J)

  @jax.jit  # traced once for both its shapes and the loop
  def step_lanes(lanes, job, job_L, t):
    stored, real_LB = _examples(inputs.data, table.examples_TLB[t])
    known = ()
    if program.freeze_once:
      at_LB = (table.jobs.run[job_L][:, None],
               jnp.maximum(table.examples_TLB[t], 0))
      known = jax.tree.map(
          lambda x_RN: _only(real_LB, x_RN[at_LB]), frozen_RN),
    return jax.vmap(
        functools.partial(local.step, program),
        in_axes=(0, _axes(inputs), 0, 0, 0, *(0 for _ in known)))(
            lanes, job, table.step_TL[t], stored, real_LB, *known)

  def run_segment(s, carry):
    lanes, done, metrics_TL = carry
    begin, end = table.bounds[0, s], table.bounds[0, s + 1]
    is_active_L = table.job_TL[begin] >= 0
    job_L = jnp.maximum(table.job_TL[begin], 0)
    last_L = table.jobs.num_steps[job_L] - 1
    starts_L = is_active_L & (table.step_TL[begin] == 0)
    ends_L = is_active_L & (table.step_TL[end - 1] == last_L)
    job = _jobs_of_lanes(program, inputs, done.clients_J, job_L)
    lanes = jax.tree.map(
        functools.partial(accumulate.where, starts_L),
        _start(program, inputs, job), lanes)

    def run_row(t, carry):
      lanes, metrics_TL = carry
      lanes, metrics_L = step_lanes(lanes, job, job_L, t)
      return lanes, jax.tree.map(
          lambda x_TL, x_L: lax.dynamic_update_index_in_dim(
              x_TL, jnp.where(is_active_L, x_L, 0), t, axis=0),
          metrics_TL, metrics_L)

    lanes, metrics_TL = lax.fori_loop(
        begin, end, run_row, (lanes, metrics_TL))
    done = accumulate.add(
        done, ends_L, job_L, table.jobs, lanes.is_finite,
        _finish(program, inputs, lanes, job),
        lanes.variables if program.keep_models else ())
    return lanes, done, metrics_TL

  # int32, since a plain 0 has a weak type and would trace run_segment twice.
  _, done, metrics_TL = lax.fori_loop(
      jnp.int32(0), table.num_segments[0], run_segment,
      _initial(program, inputs, clients_J, step_lanes))
  return done, metrics_TL


def _initial(program, inputs, clients_J, step_lanes):
  """The carry before the first segment: lanes of zeros, nothing done."""
  num_rows, num_lanes = inputs.table.job_TL.shape

  zeros = lambda shape, tree: jax.tree.map(
      lambda x: jnp.zeros((*shape, *x.shape), x.dtype), tree)

  def of_lanes(job_L):
    job = _jobs_of_lanes(program, inputs, clients_J, job_L)
    lanes = zeros((), _start(program, inputs, job))
    _, metrics_L = step_lanes(lanes, job, job_L, jnp.int32(0))
    return lanes, metrics_L, _finish(program, inputs, lanes, job)

  lanes, metrics_L, result_L = jax.eval_shape(
      of_lanes, jnp.zeros(num_lanes, jnp.int32))
  done = accumulate.zeros(
      clients_J, result_L, lanes.variables if program.keep_models else (),
      inputs.num_runs, len(inputs.table.jobs.run))
  return zeros((), lanes), done, zeros((num_rows,), metrics_L)


def _view(program, inputs, clients_J, j):
  """Returns the view of one job; where R = 1, the run is not looked up."""
  jobs = inputs.table.jobs
  run = jobs.run[j] if inputs.num_runs > 1 else 0
  of_run = functools.partial(jax.tree.map, lambda x_R: x_R[run])
  return View(
      variables=of_run(inputs.variables),
      server=program.algorithm.broadcast(of_run(inputs.server)),
      client=jax.tree.map(lambda x_J: x_J[j], clients_J),
      hparams=of_run(inputs.hparams),
      num_examples=jobs.num_examples[j],
      num_steps=jobs.num_steps[j])


def _axes(inputs):
  """The axes of lanes in a `Job`: what all share has none where R = 1."""
  of_run = 0 if inputs.num_runs > 1 else None
  return Job(View(variables=of_run, server=of_run, client=0, hparams=of_run,
                  num_examples=0, num_steps=0), key=0)


def _jobs_of_lanes(program, inputs, clients_J, job_L):
  """The lanes' jobs, with the axes of `_axes`."""
  def of_job(j):
    key = jax.random.fold_in(
        inputs.key[inputs.table.jobs.run[j]], inputs.round)
    return Job(_view(program, inputs, clients_J, j),
               jax.random.fold_in(key, inputs.table.jobs.client[j]))

  return jax.vmap(of_job, out_axes=_axes(inputs))(job_L)


def _start(program, inputs, job):
  # vmap needs one argument with an axis of lanes: the keys have it.
  return jax.vmap(lambda job: local.start(program, job.view),
                  in_axes=(_axes(inputs),))(job)


def _finish(program, inputs, lanes, job):
  return jax.vmap(lambda lane, job: local.finish(program, lane, job.view),
                  in_axes=(0, _axes(inputs)))(lanes, job)


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


def _frozen(program, inputs, clients_J):
  """Outputs of frozen models for all examples of the jobs, at [R, N, ...]."""
  data, own, jobs = inputs.data, inputs.table.own, inputs.table.jobs

  def of_batch(j, s):
    stored, real_B = _examples(data, own.index_JSB[j, s])
    view = _view(program, inputs, clients_J, j)
    return local.frozen(program, view, stored, real_B)

  def of_job(j, known_RN):
    def add(s, known_RN):
      index_B = own.index_JSB[j, s]
      slot_B = jnp.where(index_B >= 0, index_B, _NOWHERE)
      return jax.tree.map(
          lambda x_RN, x_B: x_RN.at[jobs.run[j], slot_B].set(x_B, mode='drop'),
          known_RN, of_batch(j, s))

    return lax.fori_loop(0, own.num_batches_J[j], add, known_RN)

  known_RN = jax.tree.map(
      lambda x_B: jnp.zeros(
          (inputs.num_runs, len(data.labels), *x_B.shape[1:]), x_B.dtype),
      jax.eval_shape(of_batch, 0, 0))
  return lax.fori_loop(0, len(jobs.run), of_job, known_RN)
