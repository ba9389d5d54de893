"""One client's work in a round: start, local steps, and the message it sends.

Functions take one job; `moon_jax.engine.segments` maps them over the lanes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from moon_jax import optimizers, platforms
from moon_jax.algorithms import base
from moon_jax.algorithms.base import (
  Algorithm,
  Batch,
  Examples,
  Message,
  Trained,
  View,
)
from moon_jax.data import augment
from moon_jax.engine.flat import Flat
from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.optimizers import Optimizer
from moon_jax.topologies.base import STAR, Topology

# Folded into the key of a step, for draws of the network, of the loss and of
# `RoundProgram.augmentation`; too large to collide with a split key.
_DROPOUT = 0x64726f70
_LOSS = 0x6c6f7373
_AUGMENT = 0x61756720

# Folded into the key of a run, round and client, for `View.key`, and into that
# of a run and round, for the server; larger than all steps and clients.
VIEW = 0x76696577
SERVER = 0x73657276


class RoundProgram(NamedTuple):
  """The static parts of a compiled round."""

  model: Model
  algorithm: Algorithm
  optimizer: Optimizer
  augment_fn: Callable[[jax.Array, jax.Array], jax.Array]  # key, stored inputs
  normalize_fn: Callable[[jax.Array], jax.Array]  # of stored inputs
  keep_models: bool = False  # whether a round returns the local models
  freeze_once: bool = False  # whether `frozen` runs once per round and example
  # instead of in each step; valid only if inputs are the same in every epoch
  # and no two clients share an example
  clip_gradients: bool = False  # whether to clip them to hparams gradient_clip
  unused_hparams: tuple[str, ...] = ()  # see moon_jax.optimizers.make
  topology: Topology = STAR
  augmentation: Callable[[jax.Array, Batch], Batch] | None = None  # key, batch
  # of normalized inputs
  debug: bool = False  # whether rounds run in plain Python


class TrainData(NamedTuple):
  """Training examples as stored, before normalization.

  The first axis has all N examples, or the B examples of a batch.
  """

  inputs: jax.Array | np.ndarray  # [N, ...]
  labels: jax.Array | np.ndarray  # int32 [N], or those of the task [N, ...]
  noise_std: jax.Array | np.ndarray | None = None  # float32 [N, channels] or
  # [N, 1], standard deviations of the noise of --partition=feature_noise
  frozen: Any = ()  # result of Model.frozen, without an axis of examples


class Job(NamedTuple):
  """The constants of a job while it trains."""

  view: View
  key: jax.Array  # random key of this run, round and client


class Lane(NamedTuple):
  """The variables of a job, which each step updates."""

  trained: Trained  # see Algorithm.start
  opt_state: Any
  is_finite: jax.Array  # bool scalar, whether all losses so far were finite


class KeptModels(NamedTuple):
  """The models of a finished job that a round returns."""

  local: Variables  # result of Algorithm.local_model
  personal: Variables | tuple[()]  # of Algorithm.personal_model, () without it

  @property
  def evaluated(self) -> Variables:
    """The model that the client itself uses."""
    return self.personal or self.local


class Result(NamedTuple):
  """The results of a finished job."""

  client: Any  # the new client state
  message: Message  # its mean and total are `Flat`
  update: Flat  # w_i - w^t of the local model's parameters
  models: KeptModels | tuple[()]  # () unless RoundProgram.keep_models


class StepMetrics(NamedTuple):
  """Scalars of one local step, computed from the model before the step."""

  loss: jax.Array  # the local objective, with penalties
  extra: dict[str, jax.Array]  # metrics of the algorithm


def start(program: RoundProgram, view: View, examples: Examples) -> Lane:
  """Returns a lane with the initial local model and optimizer state."""
  trained = program.algorithm.start(with_examples(program, view, examples))
  return Lane(trained, _optimizer(program, view).init(trained['params']),
              is_finite=jnp.array(True))


def with_examples(program: RoundProgram, view: View,
                  examples: Examples) -> View:
  """Returns the view with the network and the client's examples."""
  return base.with_examples(
      program.algorithm, view, program.model.with_key(view.key), examples)


def _optimizer(program, view):
  return optimizers.make(
      program.optimizer, view.hparams, program.clip_gradients,
      program.unused_hparams)


def step(program: RoundProgram, lane: Lane, job: Job, step_in_job: jax.Array,
         stored: TrainData, mask_B: jax.Array,
         frozen_B: Any = None) -> tuple[Lane, StepMetrics]:
  """Takes one step of the local optimizer on one batch of stored examples.

  `frozen_B` has the result of `Algorithm.frozen`; None computes it.
  """
  key = jax.random.fold_in(job.key, step_in_job)
  inputs = program.normalize_fn(
      platforms.by_platform(_materialize, lambda x_B: x_B,
                            program.augment_fn(key, stored.inputs)))
  if stored.noise_std is not None:
    inputs = augment.add_noise(key, inputs, stored.noise_std)
  batch = Batch(inputs, stored.labels, mask_B, step=step_in_job)
  if program.augmentation is not None:
    batch = program.augmentation(jax.random.fold_in(key, _AUGMENT), batch)
  if frozen_B is None:
    frozen_B = program.algorithm.frozen(program.model, batch, job.view)
  batch = batch._replace(
      frozen=frozen_B, key=jax.random.fold_in(key, _LOSS))
  model = program.model.with_key(jax.random.fold_in(key, _DROPOUT))

  def objective(params, batch):
    trained = {**lane.trained, 'params': params}
    return algorithm.loss(model, trained, batch, job.view)

  algorithm, params = program.algorithm, lane.trained['params']
  (loss, aux), grads = algorithm.gradient(objective, params, batch, job.view)
  grads = platforms.by_platform(lambda grads: grads, _isolate_vectors, grads)
  grads = algorithm.transform_grads(grads, job.view)
  is_trained = algorithm.trains and jax.tree.broadcast(
      algorithm.trains(params, batch, job.view), params)
  grads = _trained_only(is_trained, grads)  # before the optimizer clips them
  optimizer = _optimizer(program, job.view)
  updates, opt_state = optimizer.update(grads, lane.opt_state, params)
  updates = _trained_only(
      is_trained, algorithm.transform_updates(updates, batch, job.view))
  opt_state = _new_state(optimizer, is_trained, opt_state, lane.opt_state)
  trained = {**aux.variables, 'params': optax.apply_updates(params, updates)}
  return (lane._replace(trained=trained, opt_state=opt_state,
                        is_finite=lane.is_finite & jnp.isfinite(loss)),
          StepMetrics(loss, jax.tree.map(jnp.asarray, aux.metrics)))


def _trained_only(is_trained, tree):
  """Returns a tree with 0 for parameters that do not train.

  `is_trained` has a bool for each parameter; None if all train.
  """
  return tree if is_trained is None else jax.tree.map(
      lambda is_trained, x: jnp.where(is_trained, x, 0), is_trained, tree)


def _new_state(optimizer, is_trained, opt_state, old_opt_state):
  """Returns the optimizer's state, the old one where parameters do not train.

  Other state, such as a number of steps, advances.
  """
  if is_trained is None:
    return opt_state
  advances = optax.tree.map_params(
      optimizer, lambda _, is_trained: is_trained, opt_state, is_trained,
      transform_non_params=lambda _: True)
  return jax.tree.map(jnp.where, advances, opt_state, old_opt_state)


def _isolate_vectors(grads):
  """Returns the gradients, with a barrier after those of vectors.

  Without the barrier XLA fuses the optimizer's step on scales and biases with
  the last operations that read them, and then copies them in every step: 19
  times in ResNet-18 and 52 times in ResNet-50.
  """
  return jax.tree.map(
      lambda g: lax.optimization_barrier(g) if g.ndim == 1 else g, grads)


def _materialize(x_B):
  """Returns `x_B`, and makes XLA compute it only once on CPUs.

  XLA for CPUs fuses a producer into each of its consumers, and removes
  `lax.optimization_barrier` before it does. It cannot fuse across a loop.
  """
  halves = x_B.reshape(2, -1, *x_B.shape[1:]) if len(x_B) % 2 == 0 else x_B
  return lax.map(lambda i: halves[i], jnp.arange(len(halves))).reshape(
      x_B.shape)


def finish(program: RoundProgram, view: View, examples: Examples, lane: Lane,
           is_personal: jax.Array | None = None) -> Result:
  """Returns the results of a job from its lane after the last step.

  If the bool scalar `is_personal` is false, nobody reads the personal model. It
  is then made without examples, which may take longer than training. None means
  true.
  """
  algorithm = program.algorithm
  client, message = algorithm.finish(
      lane.trained, with_examples(program, view, examples))
  local = algorithm.local_model(lane.trained, view)
  update = jax.tree.map(jnp.subtract, Flat.from_tree(local['params']),
                        Flat.from_tree(view.variables['params']))
  models: KeptModels | tuple[()] = ()
  if program.keep_models:
    personal = algorithm.personal_model
    if is_personal is not None:
      examples = examples.only_if(is_personal)
    models = KeptModels(local, personal(
        lane.trained, with_examples(program, view, examples))
                        if personal else ())
  message = base.as_summed(message)
  message = message._replace(
      mean=Flat.from_tree(message.mean), total=Flat.from_tree(message.total))
  return Result(client, message, update, models)
