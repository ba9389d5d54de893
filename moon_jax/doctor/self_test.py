"""Tests of the installed programs against the published recipe.

golden.npz holds 48 images and what a float64 PyTorch run of MOON's released
recipe computed from them (tests/golden/README.md): client 1 of its three
clients, 3 local steps of 16 images with mu 5, temperature 0.5 and one previous
model. Initial weights are drawn from their names.
"""

import functools
import importlib.resources
from typing import Any
import zlib

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import models, optimizers
from moon_jax.data import augment
from moon_jax.distributed import devices
from moon_jax.doctor import FAILED, Finding, OK
from moon_jax.engine import round as round_lib
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.local import RoundProgram, TrainData
from moon_jax.methods.moon import Memory, moon

TOLERANCE = 1e-6
MEAN = tuple(np.array([125.3, 123.0, 113.9]) / 255)
STD = tuple(np.array([63.0, 62.1, 66.7]) / 255)
_BATCH = 16
_MOON = moon(mu=5., temperature=.5, num_negatives=1)
_EXAMPLE = np.zeros((1, 32, 32, 3), np.float32)
_REMEDY = ('results of this machine would be wrong: update jax and jaxlib, '
           'and report it with the output of moon-jax doctor --json')


def check_training() -> Finding:
  """Compares a local training with the published recipe.

  Errors of losses, which are near 6, are relative; those of weights absolute.
  """
  golden, trained = figures(), _first()
  error = float(np.max([  # NaN if one is, unlike max()
      _error(trained['losses'], golden['losses'])
      / float(golden['losses'].max()),
      *(_error_of_digest(name, trained[name], expected)
        for name, expected in zip(golden['leaf_names'], golden['digest']))]))
  values = {'error': error, 'tolerance': TOLERANCE}
  text = ("3 local steps of MOON (losses and weights) and the recipe's float64 "
          f'figures differ by {error:.1e}')
  if not error <= TOLERANCE:  # also NaN
    return Finding(FAILED, f'{text}, more than {TOLERANCE:g}: {_REMEDY}',
                   values)
  return Finding(OK, f'{text} at most (allowed: {TOLERANCE:g})', values)


def check_repeated() -> Finding:
  """Trains the same again and compares all bits."""
  first, again = _first(), train()
  error = max(_error(value, again[name]) for name, value in first.items())
  text = 'a round trained twice has '
  if all(value.tobytes() == again[name].tobytes()
         for name, value in first.items()):
    return Finding(OK, f'{text}the same bits', {'error': error})
  return Finding(FAILED, f'{text}other numbers: they differ by {error:.1e}. '
                 'For GPUs set '
                 'XLA_FLAGS=--xla_gpu_exclude_nondeterministic_ops=true',
                 {'error': error})


def _error(actual, expected):
  return float(np.abs(np.asarray(actual, np.float64) - expected).max())


def _error_of_digest(name, weights, expected):
  """Returns the error of norm and dot product, per unit of the latter."""
  weights = np.asarray(weights, np.float64)
  probe = _draw(name, weights.shape)
  digest = np.linalg.norm(weights), np.vdot(weights, probe)
  return _error(digest, expected) / max(1, np.linalg.norm(probe))


def figures() -> dict[str, np.ndarray]:
  """Returns the arrays of golden.npz."""
  path = importlib.resources.files('moon_jax.doctor') / 'golden.npz'
  with path.open('rb') as file:
    return dict(np.load(file))


def train() -> dict[str, np.ndarray]:
  """Trains one client in a round of the engine.

  Returns its losses [T], as "losses", and its parameters by name.
  """
  golden = figures()
  num_examples = len(golden['labels'])
  num_steps = num_examples // _BATCH
  run, mesh = _round()
  one = np.array([1])
  table = schedule.plan(
      schedule.Work(
          run=0 * one, client=0 * one, num_examples=num_examples * one,
          num_steps=num_steps * one,
          batches=np.arange(num_examples).reshape(num_steps, _BATCH),
          is_received=one > 0),
      schedule.shape(num_steps * one, 1, 1, _BATCH, mesh.size))
  state = state_lib.init([0], _model(), _MOON, 1, _EXAMPLE)
  state = state._replace(
      variables=_leading(_drawn('global')),
      clients=jax.tree.map(np.array, _leading(_leading(Memory(
          _leading(_drawn('prev/1/0')), jnp.int32(1))))))
  values = {name: jnp.full(1, value, jnp.float32) for name, value in dict(
      _MOON.hparams, num_negatives=1., learning_rate=.01, momentum=.9,
      weight_decay=1e-5).items()}
  data = TrainData(golden['images_u8'], golden['labels'].astype(np.int32))
  placed, data = devices.put((values, data), mesh)
  state, metrics = run(state_lib.placed(state, mesh), placed, table, data)
  params = traverse_util.flatten_dict(state.variables['params'], sep='/')
  return {'losses': np.asarray(metrics.loss_TL)[table.job_TL >= 0][:num_steps],
          **{name: np.asarray(value[0]) for name, value in params.items()}}


_first = functools.cache(train)


@functools.cache
def _round():
  mesh = devices.mesh(1)
  return round_lib.Round(
      RoundProgram(
          _model(), _MOON, optimizers.resolve('sgd'), augment.keep,
          functools.partial(augment.normalize, mean=MEAN, std=STD)),
      mesh), mesh


@functools.cache
def _model():
  return models.make('simple_cnn', num_classes=10, projection_dim=256)


def _leading(tree: Any) -> Any:
  """Returns a tree whose arrays have a leading axis of length 1."""
  return jax.tree.map(lambda x: x[None], tree)


def _drawn(prefix):
  """Returns the variables that the names of their arrays determine."""
  shapes = jax.eval_shape(_model().init, jax.random.key(0), _EXAMPLE)
  flat = traverse_util.flatten_dict(shapes['params'], sep='/')
  return {'params': traverse_util.unflatten_dict({
      name: jnp.asarray(_draw(f'{prefix}/{name}', x.shape), jnp.float32)
      for name, x in flat.items()}, sep='/')}


def _draw(name, shape):
  bound = .1 if name.endswith('bias') else 1 / np.sqrt(np.prod(shape[:-1]))
  random = np.random.RandomState(zlib.crc32(name.encode()))
  return random.uniform(-bound, bound, shape)
