"""What the ended jobs of a round leave on a device, job by job and summed.

For the letters of axes see `moon_jax.engine`.
"""

from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Message
from moon_jax.engine.local import Result
from moon_jax.engine.schedule import Jobs
from moon_jax.models.base import Variables

_NOWHERE = jnp.iinfo(jnp.int32).max  # an index at which a write is dropped
_TINY = jnp.finfo(jnp.float32).tiny


class Accumulators(NamedTuple):
  """Sums over the jobs of a device that have ended, and a row for each job."""

  clients_J: Any  # client state; of jobs that have not ended, as it was
  sums: Message  # of received messages, [R, ...]
  directions: Any  # sum of (w_i - w^t) / |w_i - w^t|, [R, ...]
  drift_J: jax.Array  # |w_i - w^t|; 0 until a job has ended
  finite_J: jax.Array  # bool, whether all that a job ended with was finite
  models_J: Variables  # local models; () where they are not kept


def zeros(clients_J: Any, result_L: Result, models_L: Variables,
          num_runs: int, num_jobs: int) -> Accumulators:
  """Returns accumulators before the first job has ended.

  Args:
    clients_J: client state before the round.
    result_L: shapes of what the lanes' jobs end with.
    models_L: shapes of their local models, () to keep none.
    num_runs: R.
    num_jobs: J.
  """
  def of(length, tree_L):
    return jax.tree.map(
        lambda x_L: jnp.zeros((length, *x_L.shape[1:]), x_L.dtype), tree_L)

  return Accumulators(
      clients_J=clients_J,
      sums=of(num_runs, result_L.message),
      directions=of(num_runs, result_L.update),
      drift_J=jnp.zeros(num_jobs),
      finite_J=jnp.ones(num_jobs, bool),
      models_J=of(num_jobs, models_L))


def add(done: Accumulators, ended_L: jax.Array, job_L: jax.Array, jobs: Jobs,
        losses_finite_L: jax.Array, result_L: Result,
        models_L: Variables) -> Accumulators:
  """Adds what the jobs of some lanes ended with.

  A job that ended with numbers that are not finite changes nothing but its own
  `finite_J` and `drift_J`.

  Args:
    done: so far.
    ended_L: bool, the lanes whose job has ended.
    job_L: index of each lane's job; any index for idle lanes.
    jobs: the jobs of the device.
    losses_finite_L: bool, whether all losses of the job were finite.
    result_L: what the jobs ended with; anything, even NaN, in other lanes.
    models_L: local models, () where they are not kept.
  """
  num_runs = len(jax.tree.leaves(done.directions)[0])
  run_L = jobs.run[job_L]
  drift_L = jax.vmap(optax.tree.norm)(result_L.update)
  finite_L = losses_finite_L & jax.vmap(all_finite)((*result_L, drift_L))
  done_L = ended_L & finite_L
  done_RL = done_L[None] & (run_L[None] == jnp.arange(num_runs)[:, None])
  received_RL = done_RL & jobs.is_received[job_L][None]

  def add_to(sums_R, is_added_RL, weight_L, x_L):
    weight_RL = jnp.where(is_added_RL, weight_L[None], 0)
    return jax.tree.map(
        lambda sum_R, x_L: sum_R + jnp.einsum(
            'rl,l...->r...', weight_RL, where(done_L, x_L, jnp.zeros_like(x_L)),
            precision=lax.Precision.HIGHEST), sums_R, x_L)

  def write(is_written_L, tree_J, tree_L):
    slot_L = jnp.where(is_written_L, job_L, _NOWHERE)
    return jax.tree.map(
        lambda x_J, x_L: x_J.at[slot_L].set(x_L, mode='drop'), tree_J, tree_L)

  clients_J, models_J = write(
      done_L, (done.clients_J, done.models_J), (result_L.client, models_L))
  drift_J, finite_J = write(
      ended_L, (done.drift_J, done.finite_J), (drift_L, finite_L))
  return Accumulators(
      clients_J=clients_J,
      sums=Message(
          mean=add_to(done.sums.mean, received_RL, jobs.weight[job_L],
                      result_L.message.mean),
          total=add_to(done.sums.total, received_RL, jnp.ones(len(job_L)),
                       result_L.message.total)),
      directions=add_to(done.directions, done_RL,
                        1 / jnp.maximum(drift_L, _TINY), result_L.update),
      drift_J=drift_J, finite_J=finite_J, models_J=models_J)


def all_finite(tree: Any) -> jax.Array:
  """Returns whether no number of the tree is NaN or infinite."""
  return jnp.all(jnp.stack([jnp.array(True)] + [
      jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)
      if jnp.issubdtype(x.dtype, jnp.inexact)]))


def mean_cosine(sum_of_directions: Any, n: jax.Array) -> jax.Array:
  """Returns the mean of u_i . u_j over pairs of n unit vectors, by their sum.

  It needs no pairs: it is (|sum|^2 - n) / (n (n - 1)); NaN for n = 1.
  """
  return ((optax.tree.norm(sum_of_directions, squared=True) - n)
          / (n * (n - 1)))


def cosine_with_mean(variables_R: Variables, jobs: Jobs, done: Accumulators,
                     directions: Any) -> jax.Array:
  """Returns each job's cosine with the sum of all jobs' directions, float [J].

  Args:
    variables_R: the global models before the round.
    jobs: the jobs of the device.
    done: with local models.
    directions: summed over all devices.
  """
  def of_job(run, model, drift):
    update = jax.tree.map(
        lambda w, w_R: w - w_R[run], model['params'], variables_R['params'])
    direction = jax.tree.map(lambda x_R: x_R[run], directions)
    return optax.tree.vdot(update, direction) / jnp.maximum(
        drift * optax.tree.norm(direction), _TINY)

  return jax.vmap(of_job)(jobs.run, done.models_J, done.drift_J)


def where(condition_L: jax.Array, x_L: jax.Array, y_L: jax.Array) -> jax.Array:
  """Returns x where a condition on the first axis holds, else y."""
  return jnp.where(
      condition_L.reshape(-1, *(1,) * (x_L.ndim - 1)), x_L, y_L)
