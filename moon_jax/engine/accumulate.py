"""Accumulates the results of finished jobs on one device."""

from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Message
from moon_jax.engine.flat import Flat
from moon_jax.engine.local import KeptModels, Result
from moon_jax.engine.schedule import Jobs
from moon_jax.models.base import Variables

OUT_OF_BOUNDS = jnp.iinfo(jnp.int32).max  # scatters drop writes to this index
_TINY = jnp.finfo(jnp.float32).tiny
_LARGE = 2**18  # arrays of this size or more are checked without a copy


class Accumulators(NamedTuple):
  """Sums over the finished jobs of one device, and one row per job."""

  clients_J: Any  # client state; unchanged until the job has finished
  sums: Message  # sums of the messages that each server model received, `Flat`
  # [G, N]; its `each` is ()
  each_J: Any  # Message.each of each received job
  directions: Flat  # sum of (w_i - w^t) / |w_i - w^t|, [R, N]
  drift_J: jax.Array  # |w_i - w^t|; 0 until the job has finished
  finite_J: jax.Array  # bool, whether all results of the job are finite
  models_J: KeptModels | tuple[()]  # () if RoundProgram.keep_models is False


def zeros(clients_J: Any, result_L: Result, num_runs: int, num_stacked: int,
          num_jobs: int) -> Accumulators:
  """Returns the accumulators before any job has finished."""
  def zeros_like(length, tree_L):
    return jax.tree.map(
        lambda x_L: jnp.zeros((length, *x_L.shape[1:]), x_L.dtype), tree_L)

  return Accumulators(
      clients_J=clients_J,
      sums=zeros_like(num_stacked, result_L.message._replace(each=())),
      each_J=zeros_like(num_jobs, result_L.message.each),
      directions=zeros_like(num_runs, result_L.update),
      drift_J=jnp.zeros(num_jobs),
      finite_J=jnp.ones(num_jobs, bool),
      models_J=zeros_like(num_jobs, result_L.models))


def add(accumulators: Accumulators, has_finished_L: jax.Array,
        job_L: jax.Array, jobs: Jobs, model_J: jax.Array,
        losses_finite_L: jax.Array, result_L: Result) -> Accumulators:
  """Adds the results of the lanes whose jobs have finished.

  A job with a loss or a result that is not finite is rejected: it changes only
  its own `finite_J` and `drift_J`. `model_J` is the server model of each job.
  In lanes whose job has not finished, indices and results may have any values,
  even NaN.
  """
  num_runs = len(jax.tree.leaves(accumulators.directions)[0])
  run_L, model_L = jobs.run[job_L], model_J[job_L]
  drift_L = jax.vmap(optax.tree.norm)(result_L.update)
  # A finite drift has finite updates.
  is_finite_L = losses_finite_L & jax.vmap(all_finite)((
      *result_L._replace(update=(), models=()), drift_L))
  is_accepted_L = has_finished_L & is_finite_L
  is_accepted_RL = is_accepted_L[None] & (
      run_L[None] == jnp.arange(num_runs)[:, None])
  is_received_L = jobs.is_received[job_L]

  def add_to_models(sums_G, weight_L, x_L):
    if not (leaves := jax.tree.leaves(sums_G)) or len(leaves[0]) == num_runs:
      return add_to(sums_G, is_accepted_RL & is_received_L[None], weight_L, x_L)
    # One lane after another, so that sums have the same bits on all devices,
    # and a lane takes no time for the models of others.
    weight_L = jnp.where(is_accepted_L & is_received_L, weight_L, 0)

    def add_lane(lane, sums_G):
      return jax.tree.map(
          lambda sum_G, x_L: sum_G.at[model_L[lane]].add(
              weight_L[lane] * jnp.where(is_accepted_L[lane], x_L[lane], 0)),
          sums_G, x_L)

    return lax.fori_loop(0, len(job_L), add_lane, sums_G)

  def add_to(sums_R, is_added_RL, weight_L, x_L):
    weight_RL = jnp.where(is_added_RL, weight_L[None], 0)
    return jax.tree.map(
        lambda sum_R, x_L: sum_R + jnp.einsum(
            'rl,l...->r...', weight_RL,
            mixing.where(is_accepted_L, x_L, jnp.zeros_like(x_L)),
            precision='highest'), sums_R, x_L)

  def write(is_written_L, tree_J, tree_L):
    slot_L = jnp.where(is_written_L, job_L, OUT_OF_BOUNDS)
    return jax.tree.map(
        lambda x_J, x_L: x_J.at[slot_L].set(x_L, mode='drop'), tree_J, tree_L)

  message, sums = result_L.message, accumulators.sums
  clients_J, models_J, each_J = write(
      is_accepted_L, (accumulators.clients_J, accumulators.models_J,
                      accumulators.each_J),
      (result_L.client, result_L.models, message.each))
  drift_J, finite_J = write(
      has_finished_L, (accumulators.drift_J, accumulators.finite_J),
      (drift_L, is_finite_L))
  return Accumulators(
      clients_J=clients_J,
      sums=Message(
          mean=add_to_models(sums.mean, jobs.weight[job_L], message.mean),
          total=add_to_models(
              sums.total, jnp.ones(len(job_L)), message.total)),
      each_J=each_J,
      directions=add_to(accumulators.directions, is_accepted_RL,
                        1 / jnp.maximum(drift_L, _TINY), result_L.update),
      drift_J=drift_J, finite_J=finite_J, models_J=models_J)


def all_finite(tree: Any) -> jax.Array:
  """Returns whether all floating-point numbers of the tree are finite."""
  leaves = [x for x in jax.tree.leaves(tree)
            if jnp.issubdtype(x.dtype, jnp.inexact)]
  small = Flat.from_tree([x for x in leaves if x.size < _LARGE])
  large = [x for x in leaves if x.size >= _LARGE]
  return jnp.all(jnp.stack([jnp.array(True)] + [
      jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves((small, large))]))


def mean_cosine(sum_of_directions: Flat, n: jax.Array) -> jax.Array:
  """Returns the mean of u_i . u_j over all pairs of n unit vectors.

  Computes it from the sum of the vectors, as (|sum|^2 - n) / (n (n - 1)). The
  result is NaN for n = 1.
  """
  return ((optax.tree.norm(sum_of_directions, squared=True) - n)
          / (n * (n - 1)))


def cosine_with_mean(variables_G: Variables, model_J: jax.Array, jobs: Jobs,
                     accumulators: Accumulators, directions: Flat
                     ) -> jax.Array:
  """Returns each job's cosine with the sum of all jobs' directions, float [J].

  The directions are summed over all devices, the jobs are those of one.
  """
  def job_cosine(run, start, model, drift):
    update = jax.tree.map(
        lambda w, w_G: w - w_G[start], model['params'], variables_G['params'])
    direction = jax.tree.map(lambda x_R: x_R[run], directions.tree())
    return optax.tree.vdot(update, direction) / jnp.maximum(
        drift * optax.tree.norm(direction), _TINY)

  return jax.vmap(job_cosine)(
      jobs.run, model_J, accumulators.models_J.local, accumulators.drift_J)
