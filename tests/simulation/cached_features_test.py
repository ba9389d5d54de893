"""Frozen layers whose features are computed once, and what cannot be cached."""

import dataclasses

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.models import features
from moon_jax.simulation import cached_features, memory, round_spec
from support import tiny_federation

HEAD = '^(?!out)'  # what is frozen


class Net(nn.Module):
  """A network with dropout."""

  norm: bool = False
  mixes: bool = False

  @nn.compact
  def __call__(self, x, train):
    x = nn.tanh(nn.Dense(6, name='first')(x))
    if self.mixes:
      x = x - jnp.mean(x, 0)[None]
    if self.norm:
      x = nn.BatchNorm(use_running_average=not train, name='norm')(x)
    drop = nn.Dropout(.5, deterministic=not train)
    x = nn.tanh(nn.Dense(5, name='second')(drop(x)))
    return mj.Outputs(features=x, logits=nn.Dense(2, name='out')(drop(x)))


class Nnx(nnx.Module):

  def __init__(self, rngs):
    self.body = nnx.Sequential(nnx.Linear(4, 6, rngs=rngs), nnx.tanh,
                               nnx.BatchNorm(6, rngs=rngs))
    self.out = nnx.Linear(6, 2, rngs=rngs)

  def __call__(self, x):
    return self.out(self.body(x))


def frozen(module, where=HEAD, cache=True):
  wrap = mj.from_flax if isinstance(module, nn.Module) else mj.from_nnx
  return mj.freeze(wrap(module), where, evaluates=True, cache=cache)


def simulation(model, **changes):
  return mj.Simulation(tiny_federation.make(**{
      'model': model, 'batch_size': 4, 'local_epochs': 2, 'last_batch': 'keep',
      **changes}))


@pytest.mark.parametrize('module, width', [
    pytest.param(Net(norm=True), 5, marks=pytest.mark.long), (Nnx, 6)])
def test_cached_rounds_equal_uncached_rounds(module, width):
  """Models and records, up to rounding, also of the second round."""
  found = []
  for cache in False, True:
    ours = simulation(frozen(module, cache=cache))
    records = ours.run(2)
    found.append((ours.global_model(), [
        (r.train_loss, r.test_loss, r.test_accuracy) for r in records]))
    assert ours.bytes_per_round() == 3 * 2 * 4 * ours.num_parameters
    inputs = ours.program.spec.federation.data.train_inputs
    assert inputs.shape[1] == (width if cache else 4)
    assert ours.federation.data.train_inputs.shape[1] == 4  # the given ones
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), *found)
  assert found[0][0].keys() == {'params'}
  assert found[0][0]['params'].keys() == {'out'}


def test_a_cached_round_has_no_frozen_weights():
  ours = simulation(frozen(Nnx), batch_size=3)
  spec = ours.program.spec
  ours.compile()
  text = ours.program._round._run.as_text()
  assert 'f32[6,2]' in text and 'f32[4,6]' not in text
  part, = (part for part in memory.on_host(spec)
           if part.name == 'training examples')
  data = ours.federation.data
  assert part.size == (6 + 1) * 4 * len(data.train_labels)
  of_inputs, = (part for part in memory.on_host(spec)
                if 'inputs of the cached' in part.name)
  assert of_inputs.size == data.train_inputs.nbytes + data.test_inputs.nbytes
  # A plan has the same sizes, and computes nothing.
  planned = round_spec.alone(ours.federation)
  assert memory.on_host(planned) == memory.on_host(spec)
  assert not planned.federation.data.train_inputs.any()


def test_inputs_are_checked_and_not_the_features():
  data = tiny_federation.make().data
  with pytest.warns(UserWarning, match='train_inputs are not normalized'):
    round_spec.alone(tiny_federation.make(
        model=frozen(Nnx), data=data._replace(
            train_inputs=data.train_inputs * 1e3)))


@pytest.mark.long
def test_further_sets_and_runs_have_features():
  base = tiny_federation.make(model=frozen(Nnx))
  data = base.data
  federations = [dataclasses.replace(base, seed=seed, test_sets={'again': (
      data.test_inputs + seed, data.test_labels)}) for seed in (0, 1)]
  federations.append(dataclasses.replace(federations[0], seed=2))
  program = mj.Program(federations)
  first, other, same = (run.spec.federation.test_sets['again'][0]
                        for run in program.runs)
  assert same is first is not other
  program.run_round([0, 1, 2])
  found = [program.evaluate(run) for run in (0, 1)]
  assert found[0]['again_loss'] == pytest.approx(found[0]['test_loss'])
  assert found[1]['again_loss'] != pytest.approx(found[1]['test_loss'])


@pytest.mark.parametrize('model, inputs, where', [
    (mj.mlp(3), np.ones((1, 7), np.float32), '^fc'),
    pytest.param(mj.simple_cnn(3), np.ones((1, 32, 32, 3), np.float32), '^conv',
                 marks=pytest.mark.long),
    pytest.param(mj.transformer(7, width=8, num_layers=1, num_heads=2),
                 np.ones((1, 5), np.int32), HEAD, marks=pytest.mark.long)])
def test_parts_compute_what_the_network_computes(model, inputs, where):
  """Wherever the axis of examples is, and for any batch size."""
  model = mj.freeze(model, where, evaluates=True, cache=True)
  parts = features.split(model, inputs.shape[1:], str(inputs.dtype))
  weights, variables = model.frozen(inputs), model.init(
      jax.random.key(1), inputs)
  random = np.random.default_rng(0)
  x = random.integers(7, size=(5, *inputs.shape[1:])).astype(inputs.dtype)
  mask = jnp.ones(3)
  found = jax.jit(lambda x: parts.head.apply(
      variables, parts.body(weights, x)[1:4], mask, train=True,
      frozen=weights)[0])(x)
  expected = jax.jit(lambda x: model.apply(
      variables, x, mask, train=True, frozen=weights)[0])(x[1:4])
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5),
               found, expected)


@pytest.mark.long
def test_features_of_a_residual_network_are_small():
  """Its blocks are recomputed as a whole, and also get the mask."""
  model = mj.freeze(mj.resnet18(3, None), HEAD, evaluates=True, cache=True)
  # 512 features, and means after the stem and three stages.
  assert features.split(model, (8, 8, 3), 'float32').num_features == (
      512 + 64 + 64 + 128 + 256)


@pytest.mark.parametrize('model, changes, words', [
    (frozen(Net(mixes=True)), {}, 'not depend on the other examples'),
    (frozen(Net(), 'out'), {}, 'first layers'),
    (frozen(Net()), {'input_noise_std': np.ones(sum(tiny_federation.SIZES))},
     'input_noise_std must be None'),
    (frozen(Net()), {'augmentation': lambda key, x: x},
     'augmentation must be None')])
def test_what_cannot_be_cached_is_refused(model, changes, words):
  with pytest.raises(mj.UserError, match=words):
    simulation(model, **changes)


def test_augmented_images_are_refused():
  federation = tiny_federation.make(model=frozen(Net()))
  images = federation.data._replace(
      train_inputs=np.zeros((19, 2, 2, 1), np.uint8),
      test_inputs=np.zeros((5, 2, 2, 1), np.uint8), augmentation='crop')
  object.__setattr__(federation, 'data', images)
  object.__setattr__(federation, 'augment', True)
  with pytest.raises(mj.UserError, match='augment must be False.*tion crop'):
    cached_features.planned(federation)


def test_training_mode_is_not_cached():
  with pytest.raises(mj.UserError, match='cache needs evaluates=True'):
    mj.freeze(mj.from_flax(Net(norm=True)), HEAD, cache=True)
