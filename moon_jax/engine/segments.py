"""Trains the jobs of one device on its lanes, segment by segment.

A segment is a range of consecutive rows in which no job starts after the first
row or ends before the last, so that each lane has the same job, or none, in all
of its rows. The device loops over segments and over their rows:

    for each segment:
      start the jobs that begin at its first row
      for each of its rows: one local step on every lane
      accumulate the results of the jobs that end at its last row

The inner loop carries only models, optimizer states and metrics. Client state,
views and sums stay outside of it, as do the starts and ends of jobs.
"""

import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax import debugging
from moon_jax.algorithms import base, mixing
from moon_jax.algorithms.base import Batch, Examples, Receiver, View
from moon_jax.engine import accumulate, local
from moon_jax.engine.accumulate import Accumulators
from moon_jax.engine.local import Job, RoundProgram, StepMetrics, TrainData
from moon_jax.engine.schedule import Table
from moon_jax.models.base import Variables
from moon_jax.optimizers import Hyperparameters


class Inputs(NamedTuple):
  """The inputs of a round on one device.

  Job indices in the table count from the first job of the device.
  """

  variables: Variables  # the server models, [G, ...], R of them, or R M
  server: Any  # server state of each, [G, ...]
  round: jax.Array  # int32 [R], from 0
  key: jax.Array  # random keys, [R]
  hparams: Hyperparameters  # [R]
  table: Table
  data: TrainData
  topology: Any = ()  # state of the topology, [R, ...]
  model_J: Any = None  # int32 [J], the server model of each job, 0 to G - 1
  choice_J: Any = ()  # int32 [J], what `Topology.choose` returned; () if M is 1
  losses_J: Any = ()  # of the models on a job's examples, [J, M]; or ()

  @property
  def num_stacked(self) -> int:
    """G."""
    return len(jax.tree.leaves(self.variables)[0])

  @property
  def num_runs(self) -> int:
    return self.key.shape[0]

  def run_of(self, j) -> jax.Array | int:
    """Returns the run of job `j`; with R = 1 a constant, as `_axes` needs."""
    return self.table.jobs.run[j] if self.num_runs > 1 else 0

  def model_of(self, j) -> jax.Array | int:
    """Returns the server model of job `j`; with G = 1 a constant."""
    return self.model_J[j] if self.num_stacked > 1 else 0


def train(program: RoundProgram, inputs: Inputs, clients_J: Any
          ) -> tuple[Accumulators, StepMetrics]:
  """Trains all jobs of a device; step metrics are [T, L], 0 in idle lanes."""
  table = inputs.table
  frozen_RN = (_frozen_outputs(program, inputs, clients_J)
               if program.freeze_once else None)

  def map_lanes(function, job, job_L, is_read_L, *lanes):
    """Calls a function of a job's view and, where `is_read_L`, examples."""
    def call(job, j, is_read, *lane):
      return function(program, job.view, own_examples(
          program, inputs, j, is_read), *lane)

    # Maps over the whole job, since its view may have no lane axis.
    return debugging.vmap(call, in_axes=(
        _axes(program, inputs), 0, 0, *(0 for _ in lanes)))(
            job, job_L, is_read_L, *lanes)

  finish = functools.partial(local.finish, is_personal=(
      None if table.is_personal is None else table.is_personal[0]))

  @jax.jit  # so that `_initial` and the loop share one trace
  def step_lanes(lanes, job, job_L, t):
    stored, mask_LB = _examples(inputs.data, table.examples_TLB[t])
    at_LB = (table.jobs.run[job_L][:, None],
             jnp.maximum(table.examples_TLB[t], 0))
    frozen_LB = jax.tree.map(
        lambda x_RN: _zero_padding(mask_LB, x_RN[at_LB]), frozen_RN)
    return _over_lanes(
        functools.partial(local.step, program),
        (0, _axes(program, inputs), 0, 0, 0, 0),
        lanes, job, table.step_TL[t], stored, mask_LB, frozen_LB)

  def run_segment(s, carry):
    lanes, accumulators, metrics_TL = carry
    begin, end = table.bounds[0, s], table.bounds[0, s + 1]
    is_active_L = table.job_TL[begin] >= 0
    job_L = jnp.maximum(table.job_TL[begin], 0)
    last_L = table.jobs.num_steps[job_L] - 1
    starts_L = is_active_L & (table.step_TL[begin] == 0)
    ends_L = is_active_L & (table.step_TL[end - 1] == last_L)
    job = _jobs_of_lanes(program, inputs, accumulators.clients_J, job_L)
    lanes = jax.tree.map(
        functools.partial(mixing.where, starts_L),
        map_lanes(local.start, job, job_L, starts_L), lanes)

    def run_row(t, carry):
      lanes, metrics_TL = carry
      lanes, metrics_L = step_lanes(lanes, job, job_L, t)
      return lanes, jax.tree.map(
          lambda x_TL, x_L: lax.dynamic_update_index_in_dim(
              x_TL, jnp.where(is_active_L, x_L, 0), t, axis=0),
          metrics_TL, metrics_L)

    lanes, metrics_TL = lax.fori_loop(
        begin, end, run_row, (lanes, metrics_TL))
    accumulators = accumulate.add(
        accumulators, ends_L, job_L, table.jobs, inputs.model_J,
        lanes.is_finite, map_lanes(finish, job, job_L, ends_L, lanes))
    return lanes, accumulators, metrics_TL

  # A Python 0 has a weak type, which would trace run_segment twice.
  _, accumulators, metrics_TL = lax.fori_loop(
      jnp.int32(0), table.num_segments[0], run_segment,
      _initial(program, inputs, clients_J, map_lanes, step_lanes))
  return accumulators, metrics_TL


def own_model(program: RoundProgram, inputs: Inputs, clients_J: Any,
              j: jax.Array) -> Variables:
  """Returns the model that the client of a job uses before it trains.

  It depends on the state of the client and on what the server sends.
  """
  view = local.with_examples(
      program, _view(program, inputs, clients_J, j),
      own_examples(program, inputs, j, is_read=True))
  algorithm = program.algorithm
  return (algorithm.personal_model or algorithm.local_model)(
      algorithm.start(view), view)


def _over_lanes(function, in_axes, *args):
  """Maps over lanes as `jax.vmap`; one lane alone has no axis of length 1.

  With such an axis XLA computes gradients of kernels transposed on CPUs.
  """
  if jax.tree.leaves(args[0])[0].shape[0] > 1:
    return jax.vmap(function, in_axes)(*args)
  lane = jax.tree.map(
      lambda axis, part: part if axis is None else jax.tree.map(
          lambda x_L: x_L[0], part), in_axes, args,
      is_leaf=lambda axis: axis is None)
  return jax.tree.map(lambda x: x[None], function(*lane))


def _initial(program, inputs, clients_J, map_lanes, step_lanes):
  """Returns the initial carry of the loop over segments, all zeros."""
  num_rows, num_lanes = inputs.table.job_TL.shape
  zeros = lambda shape, tree: jax.tree.map(
      lambda x: jnp.zeros((*shape, *x.shape), x.dtype), tree)

  def run_once(job_L):
    job = _jobs_of_lanes(program, inputs, clients_J, job_L)
    all_L = jnp.ones(num_lanes, bool)
    lanes = zeros((), map_lanes(local.start, job, job_L, all_L))
    _, metrics_L = step_lanes(lanes, job, job_L, jnp.int32(0))
    return lanes, metrics_L, map_lanes(local.finish, job, job_L, all_L, lanes)

  lanes, metrics_L, result_L = debugging.eval_shape(
      run_once, jnp.zeros(num_lanes, jnp.int32))
  accumulators = accumulate.zeros(
      clients_J, result_L, inputs.num_runs, inputs.num_stacked,
      len(inputs.table.jobs.run))
  return zeros((), lanes), accumulators, zeros((num_rows,), metrics_L)


def _view(program, inputs, clients_J, j):
  """Returns the view of job `j`."""
  jobs, run, model = inputs.table.jobs, inputs.run_of(j), inputs.model_of(j)
  select_model = functools.partial(jax.tree.map, lambda x_G: x_G[model])
  return View(
      variables=select_model(inputs.variables),
      server=base.answer(
          program.algorithm, select_model(inputs.server),
          Receiver(jobs.client[j], jobs.staleness[j])),
      client=jax.tree.map(lambda x_J: x_J[j], clients_J),
      hparams=jax.tree.map(lambda x_R: x_R[run], inputs.hparams),
      num_examples=jobs.num_examples[j],
      num_steps=jobs.num_steps[j],
      round=inputs.round[run],
      client_id=jobs.client[j],
      key=jax.random.fold_in(_key(inputs, j), local.VIEW),
      label_counts=jobs.label_counts[j])


def _key(inputs, j):
  run = inputs.run_of(j)
  key = jax.random.fold_in(inputs.key[run], inputs.round[run])
  return jax.random.fold_in(key, inputs.table.jobs.client[j])


def _axes(program, inputs):
  """Returns the lane axes of a `Job` for vmap.

  With R = 1 all lanes share the fields of the run, which have no lane axis;
  with G = 1 they also share the model.
  """
  run_axis = 0 if inputs.num_runs > 1 else None
  model_axis = 0 if inputs.num_stacked > 1 else None
  is_per_client = program.algorithm.per_client_broadcast
  return Job(View(variables=model_axis,
                  server=0 if is_per_client else model_axis,
                  client=0, hparams=run_axis, num_examples=0, num_steps=0,
                  round=run_axis, client_id=0, key=0, label_counts=0),
             key=0)


def _jobs_of_lanes(program, inputs, clients_J, job_L):
  """Returns the jobs of the lanes, with the lane axes of `_axes`."""
  def make_job(j):
    return Job(_view(program, inputs, clients_J, j), _key(inputs, j))

  return debugging.vmap(make_job, out_axes=_axes(program, inputs))(job_L)


def own_examples(program: RoundProgram, inputs: Inputs, j: jax.Array,
                 is_read: Any) -> Examples:
  """Returns the examples of a job, none of them unless `is_read`."""
  own = inputs.table.own

  def batch(index_B, s):
    return _batch(program, inputs.data, index_B)._replace(step=s)

  def step(s):
    index_N = own.index_JSB[j].reshape(-1)
    at_B = s * size + jnp.arange(size)
    return batch(jnp.where(
        at_B < len(index_N),
        index_N[jnp.minimum(at_B, len(index_N) - 1)], -1), s)

  if own is None:
    return Examples(step, jnp.int32(0))
  size = inputs.table.examples_TLB.shape[-1]
  num_examples = jnp.sum(own.index_JSB[j] >= 0)
  return Examples(
      lambda s: batch(own.index_JSB[j, s], s),
      jnp.where(is_read, own.num_batches_J[j], 0), step,
      jnp.where(is_read, -(-num_examples // size), 0))


def _examples(data, index):
  """Returns the examples at `index`, and their mask, 0 for padding (-1)."""
  at, mask = jnp.maximum(index, 0), (index >= 0).astype(jnp.float32)
  return jax.tree.map(lambda x_N: _zero_padding(mask, x_N[at]),
                      data._replace(frozen=())), mask


def _batch(program, data, index_B):
  stored, mask_B = _examples(data, index_B)
  return Batch(program.normalize_fn(stored.inputs), stored.labels, mask_B)


def _zero_padding(mask, x):
  """Returns `x` with zeros in padding.

  Padding may hold a NaN of another client, which would reach the gradient even
  if the loss masks it; and which example it holds depends on where they are.
  """
  return mixing.where(mask > 0, x, 0)


def _frozen_outputs(program, inputs, clients_J):
  """Returns the frozen models' outputs for the jobs' examples, [R, N, ...]."""
  data, own, jobs = inputs.data, inputs.table.own, inputs.table.jobs

  def run_batch(j, s):
    return program.algorithm.frozen(
        program.model, _batch(program, data, own.index_JSB[j, s]),
        _view(program, inputs, clients_J, j))

  def run_job(j, frozen_RN):
    def write_batch(s, frozen_RN):
      index_B = own.index_JSB[j, s]
      slot_B = jnp.where(index_B >= 0, index_B, accumulate.OUT_OF_BOUNDS)
      return jax.tree.map(
          lambda x_RN, x_B: x_RN.at[jobs.run[j], slot_B].set(x_B, mode='drop'),
          frozen_RN, run_batch(j, s))

    return lax.fori_loop(0, own.num_batches_J[j], write_batch, frozen_RN)

  frozen_RN = jax.tree.map(
      lambda x_B: jnp.zeros(
          (inputs.num_runs, len(data.labels), *x_B.shape[1:]), x_B.dtype),
      debugging.eval_shape(run_batch, 0, 0))
  return lax.fori_loop(0, len(jobs.run), run_job, frozen_RN)
