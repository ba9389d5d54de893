"""What one client does in a round: it starts, makes local steps, and sends.

Written for one job; `moon_jax.engine.round` maps it over the lanes.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from moon_jax import optimizers
from moon_jax import platforms
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import Batch
from moon_jax.algorithms.base import first_view
from moon_jax.algorithms.base import Message
from moon_jax.algorithms.base import View
from moon_jax.data import augment
from moon_jax.models import Model
from moon_jax.models.base import Variables


class Program(NamedTuple):
  """All that is fixed when a round is compiled."""

  model: Model
  algorithm: Algorithm
  optimizer: str  # a name of moon_jax.optimizers.OPTIMIZERS
  augment_fn: Callable[[jax.Array, jax.Array], jax.Array]  # key, stored inputs
  normalize_fn: Callable[[jax.Array], jax.Array]  # of stored inputs
  keep_models: bool = False  # whether rounds hand out the local models
  freeze_once: bool = False  # whether `frozen` is asked once a round, which
  # changes nothing where inputs are the same in every epoch, and no example is
  # two clients'


class TrainData(NamedTuple):
  """Training examples on the device, as stored: N of all, or B of a batch."""

  inputs: jax.Array  # [N, ...]
  labels: jax.Array  # int32 [N]
  noise_std: jax.Array | None = None  # float32 [N, C] of feature_noise


class Job(NamedTuple):
  """What stays the same while a job trains."""

  view: View
  key: jax.Array  # of this run, round and client


class Lane(NamedTuple):
  """What changes with each step of a job."""

  variables: Variables
  opt_state: Any
  is_finite: jax.Array  # bool scalar, whether all its losses were finite


class Result(NamedTuple):
  """What a job ends with."""

  client: Any  # the client's state from now on
  message: Message
  update: Any  # w_i - w^t, of the parameters


class StepMetrics(NamedTuple):
  """Scalars of one local step, of the model before it."""

  loss: jax.Array  # the whole local objective
  extra: dict[str, jax.Array]  # what the algorithm records


def start(program: Program, view: View) -> Lane:
  """Returns a lane with the model to start from and a fresh optimizer."""
  optimizer = optimizers.make(program.optimizer, view.hparams)
  variables = program.algorithm.start(view)
  return Lane(variables, optimizer.init(variables['params']),
              is_finite=jnp.array(True))


def frozen(program: Program, view: View, stored: TrainData,
           mask_B: jax.Array) -> Any:
  """What the algorithm's frozen models say of examples as they are stored."""
  batch = Batch(program.normalize_fn(stored.inputs), stored.labels, mask_B)
  return program.algorithm.frozen(program.model, batch, view)


def frozen_bytes(model: Model, algorithm: Algorithm,
                 example: jax.Array) -> int:
  """Of what frozen models say of one example, a batch of one input."""
  def of_example(key):
    view = first_view(algorithm, model.init(key, example))
    batch = Batch(example, jnp.zeros(1, jnp.int32), jnp.ones(1))
    return algorithm.frozen(model, batch, view)

  known = jax.eval_shape(of_example, jax.random.key(0))
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(known))


def step(program: Program, lane: Lane, job: Job, step_in_job: jax.Array,
         stored: TrainData, mask_B: jax.Array,
         frozen_B: Any = None) -> tuple[Lane, StepMetrics]:
  """One step of the local optimizer on one batch of stored examples.

  Args:
    program: what is fixed.
    lane: the job's model and optimizer.
    job: its view and key.
    step_in_job: from 0.
    stored: the batch's examples.
    mask_B: 1 for real examples and 0 for padding.
    frozen_B: what `frozen` gave of them, where it is known.
  """
  key = jax.random.fold_in(job.key, step_in_job)
  inputs = program.normalize_fn(
      platforms.by_platform(_materialize, lambda x_B: x_B,
                            program.augment_fn(key, stored.inputs)))
  if stored.noise_std is not None:
    inputs = augment.add_noise(key, inputs, stored.noise_std)
  batch = Batch(inputs, stored.labels, mask_B)
  if frozen_B is None:
    frozen_B = program.algorithm.frozen(program.model, batch, job.view)
  batch = batch._replace(frozen=frozen_B)

  def objective(params):
    variables = {**lane.variables, 'params': params}
    return program.algorithm.loss(program.model, variables, batch, job.view)

  params = lane.variables['params']
  (loss, aux), grads = jax.value_and_grad(objective, has_aux=True)(params)
  grads = platforms.by_platform(lambda grads: grads, _finish_vectors, grads)
  grads = program.algorithm.transform_grads(grads, job.view)
  optimizer = optimizers.make(program.optimizer, job.view.hparams)
  updates, opt_state = optimizer.update(grads, lane.opt_state, params)
  variables = {**aux.variables, 'params': optax.apply_updates(params, updates)}
  return (lane._replace(variables=variables, opt_state=opt_state,
                        is_finite=lane.is_finite & jnp.isfinite(loss)),
          StepMetrics(loss, aux.metrics))


def _finish_vectors(grads):
  """Returns gradients, those of vectors computed before any is used.

  Otherwise XLA fuses the optimizer's step on scales and biases with the last
  operations that read them, and then copies them in every step: 19 times in
  ResNet-18 and 52 times in ResNet-50.
  """
  return jax.tree.map(
      lambda g: lax.optimization_barrier(g) if g.ndim == 1 else g, grads)


def _materialize(x_B):
  """Returns `x_B`, computed once, however many times it is read.

  On CPUs XLA fuses a producer into each of its consumers and drops
  `lax.optimization_barrier` before it does; across a loop it cannot.
  """
  halves = x_B.reshape(2, -1, *x_B.shape[1:]) if len(x_B) % 2 == 0 else x_B
  return lax.map(lambda i: halves[i], jnp.arange(len(halves))).reshape(
      x_B.shape)


def finish(program: Program, lane: Lane, view: View) -> Result:
  """Returns what a job ends with, from the lane after its last step."""
  client, message = program.algorithm.finish(lane.variables, view)
  update = jax.tree.map(
      jnp.subtract, lane.variables['params'], view.variables['params'])
  return Result(client, message, update)
