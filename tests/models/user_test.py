"""Custom networks, from their own files and in Python."""

import pathlib
import warnings

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import Config
from moon_jax.models import user
from moon_jax.runs import saved_models
from moon_jax.simulation import build, round_spec
from support import networks, tiny_federation

MODULE = '''
from flax import linen as nn
from flax import nnx
import moon_jax as mj


class Net(nn.Module):
  num_classes: int
  width: int = 8

  @nn.compact
  def __call__(self, x, training):
    h = nn.Dropout(.5, deterministic=not training)(
        nn.Dense(self.width)(x.reshape(len(x), -1)))
    return mj.Outputs(features=h, logits=nn.Dense(self.num_classes)(h))


class Nnx(nnx.Module):
  def __init__(self, num_classes, *, rngs):
    self.out = nnx.Linear(1024, num_classes, rngs=rngs)

  def __call__(self, x):
    return self.out(x.reshape(len(x), -1))


class Reshapes(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.Dense(10)(x.reshape(-1, 7))


class Asks(nn.Module):  # line 32
  def __call__(self, x, temperature):
    return x


class Pair(nn.Module):  # line 37
  @nn.compact
  def __call__(self, x):
    return x, x


def sequence(num_classes):
  return nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(num_classes)])


class Drops(nn.Module):  # line 47
  @nn.compact
  def __call__(self, x, train):
    x = nn.Dropout(.5, deterministic=not train)(x.reshape(len(x), -1))
    return nn.Dense(10)(x)
'''


@pytest.fixture
def module(tmp_path, monkeypatch, request):
  """The name of a module of its own for each test."""
  name = f'net_{abs(hash(request.node.name))}'
  (tmp_path / f'{name}.py').write_text(MODULE)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(tmp_path)
  return name


def spec(data, **flags):
  federation = build.federation(Config(
      dataset='digits', num_clients=4, partition='iid', **flags), data)
  return round_spec.make(federation, 1, 1)


@pytest.mark.parametrize('model, shape', [
    ('Net(width=5)', (1024, 5)), ('Net', (1024, 8)),
    ('Nnx', (1024, 10)), ('sequence', (1024, 10))])
def test_a_user_defined_factory_is_called(module, digits, model, shape):
  algorithm = 'moon' if model.startswith('Net') else 'fedavg'
  found = spec(digits, model=f'{module}:{model}', algorithm=algorithm)
  shapes = [x.shape for x in jax.tree.leaves(found.model['params'])]
  assert shape in shapes


@pytest.mark.parametrize('flags, words', [
    (dict(model='{}:Reshapes'), r'failed: TypeError.*reshape.*py, line 29\)'),
    (dict(model='{}:Asks'), r'\(x, temperature\).*line 32\). Rename temper'),
    (dict(model='{}:Pair'), r'must return logits.* got a tuple .*line 37\)'),
    (dict(model='{}:Net(widht=5)'),
     r':Net has the arguments width.*; got widht=5. Did you mean width\?'),
    (dict(model='{}:Drops', algorithm='moon'),
     r'moon needs .* projection of the network.*line 47\)'),
])
def test_errors_are_reported(module, digits, flags, words):
  flags = {k: v.format(module) for k, v in flags.items()}
  with pytest.raises(mj.UserError, match=words) as error:
    spec(digits, **{'algorithm': 'fedavg', **flags})
  assert '\n' not in str(error.value)


def test_outputs_of_16_bits_become_float32():
  """Sums of losses need more bits."""
  model = mj.from_flax(nn.Dense(3, dtype=jnp.bfloat16))
  outputs, _ = model.apply(
      model.init(jax.random.key(0), jnp.ones((2, 4))), jnp.ones((2, 4)),
      jnp.ones(2), train=False)
  assert outputs.logits.dtype == jnp.float32
  with pytest.raises(mj.UserError, match='logits of float32.*got bfloat16'):
    user._check_outputs(
        'model', outputs._replace(logits=outputs.logits.astype(jnp.bfloat16)),
        jnp.zeros(2, int), 3, model)


class Counts(nn.Module):
  """Counts its calls in an integer."""

  @nn.compact
  def __call__(self, x):
    calls = self.variable('counts', 'calls', lambda: jnp.int32(0))
    if self.is_mutable_collection('counts'):
      calls.value += 1
    return nn.Dense(2)(x)


@pytest.mark.parametrize('network, words', [
    (Counts(), 'counts/calls of int32'),
    (nn.Dense(2, dtype=jnp.float32, param_dtype=jnp.bfloat16),
     'kernel of bfloat16')])
def test_what_is_averaged_is_float32(network, words):
  federation = tiny_federation.make(model=mj.from_flax(network))
  with pytest.raises(mj.UserError, match=(
      f'must have float32 parameters and state.*{words}')):
    mj.Simulation(federation)


def test_errors_of_values_in_python_keep_their_traceback():
  class Broken(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.Dense(3)(x.no_such_field)

  federation = tiny_federation.make(model=mj.from_flax(Broken()))
  with pytest.raises(AttributeError, match='no_such_field'):
    mj.Simulation(federation)


def test_products_of_user_networks_are_float32_on_gpus():
  """In the round and in the evaluation; JAX's default would be TF32."""
  seen = []

  class Recorded(nn.Module):
    @nn.compact
    def __call__(self, x):
      seen.append(jax.config.jax_default_matmul_precision)
      return nn.Dense(2)(x)

  simulation = mj.Simulation(tiny_federation.make(
      model=mj.from_flax(Recorded())))
  seen.clear()
  simulation.compile()
  simulation.run_round()
  in_round = len(seen)
  simulation.evaluate()
  assert set(seen) == {'highest'} and in_round


def test_keys_of_dropout():
  """The bound key by default, another on request, none in evaluation."""
  x, mask_B = jnp.ones((2, 4)), jnp.ones(2)
  model = mj.from_flax(networks.Dense())
  variables = model.init(jax.random.key(0), x)
  one, other = jax.random.split(jax.random.key(1))
  bound = model.with_key(one)
  logits = lambda model, **kwargs: np.asarray(model.apply(
      variables, x, mask_B, **kwargs)[0].logits)
  np.testing.assert_array_equal(
      logits(bound, train=True), logits(model, train=True, key=one))
  assert (logits(bound, train=True)
          != logits(bound, train=True, key=other)).any()
  np.testing.assert_array_equal(
      logits(bound, train=False), logits(model, train=False))
  outputs, _ = model.apply(variables, x, mask_B, train=False)
  assert outputs.features is None and outputs.projection is None
  plain = mj.Model(model.init, lambda variables, x, mask, train: None)
  assert plain.with_key(one) is plain


def test_random_streams_of_linen_draw_apart():
  """Of dropout and of names of your own, which Flax takes from "params"."""
  class Draws(nn.Module):
    @nn.compact
    def __call__(self, x, train):
      draw = lambda name: jax.random.uniform(
          self.make_rng(name), x.shape) if train else x
      return mj.Outputs(features=draw('dropout'), projection=draw('noise'),
                        logits=draw('other'))

  x = jnp.ones((2, 4))
  outputs, _ = mj.from_flax(Draws()).apply(
      {}, x, jnp.ones(2), train=True, key=jax.random.key(0))
  draws = np.concatenate([
      np.ravel(part) for part in outputs if isinstance(part, jax.Array)])
  assert len(draws) == 24 == len(np.unique(draws))


def test_nnx_equals_linen():
  """Outputs, batch statistics and gradients, without dropout."""
  x = jax.random.normal(jax.random.key(0), (6, 4))
  mask_B = jnp.float32([1, 1, 1, 1, 0, 0])
  linen = mj.from_flax(networks.Linen())
  model = mj.from_nnx(lambda rngs: networks.Nnx(rngs=rngs))
  ours, theirs = (m.init(jax.random.key(1), x) for m in (model, linen))
  assert jax.tree.structure(ours['params']) == jax.tree.structure(
      theirs['params'])
  assert set(ours['state']) == {'norm'}
  ours['params'] = theirs['params']
  expected, _ = linen.apply(theirs, x, mask_B, train=False)
  found, same = model.apply(ours, x, mask_B, train=False)
  np.testing.assert_allclose(found.logits, expected.logits, atol=1e-6)
  assert expected.projection is expected.features
  assert same is ours
  key = jax.random.key(2)
  _, expected = linen.apply(theirs, x, mask_B, train=True, key=key)
  outputs, found = model.apply(ours, x, mask_B, train=True, key=key)
  for name in ('mean', 'var'):
    np.testing.assert_allclose(found['state']['norm'][name],
                               expected['batch_stats']['norm'][name], atol=1e-6)
  again, _ = model.apply(ours, x, mask_B, train=True, key=key)
  np.testing.assert_array_equal(outputs.features, again.features)
  other, _ = model.apply(
      ours, x, mask_B, train=True, key=jax.random.key(3))
  is_kept = [np.asarray(o.features != 0) for o in (outputs, other)]
  assert (is_kept[0] != is_kept[1]).any() and is_kept[0].any()
  with pytest.raises(mj.UserError, match=(
      'key must be given to train a network with random')):
    model.apply(ours, x, mask_B, train=True)


@pytest.mark.parametrize('is_forked', [False, True])
def test_random_layers_of_nnx_draw_apart(is_forked):
  """Two layers that share a key would drop out the same units."""
  class Twice(nnx.Module):
    def __init__(self, rngs):
      self.first, self.second = (nnx.Dropout(
          .5, rngs=rngs.fork() if is_forked else rngs) for _ in range(2))

    def __call__(self, x):
      return mj.Outputs(features=self.first(x), logits=self.second(x))

  model = mj.from_nnx(lambda rngs: Twice(rngs))
  outputs, _ = model.apply(model.init(jax.random.key(0), None),
                           jnp.ones((8, 32)), None, True, jax.random.key(1))
  first, second = np.asarray(outputs.features), np.asarray(outputs.logits)
  assert ((first != 0) != (second != 0)).mean() > .2


def test_padding_of_a_network_without_mask_causes_a_warning():
  class Norm(nn.Module):
    @nn.compact
    def __call__(self, x, train):
      return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))

  model = mj.from_flax(Norm())
  assert not model.uses_mask

  def make(batch_size):
    federation = tiny_federation.make(model=model, batch_size=batch_size)
    round_spec.make(federation, 1, 1)

  with pytest.warns(UserWarning, match='a client with 3 examples.*batch_stats'):
    make(4)
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    make(3)


def test_a_saved_network_is_loaded(module, digits, tmp_path, monkeypatch):
  config = Config(dataset='digits', model=f'{module}:Net(width=3)')
  network = build.model(config, digits)
  inputs = np.zeros((2, 32, 32, 1), np.uint8)
  variables = jax.tree.map(
      lambda x: np.full(x.shape, .1, x.dtype), jax.eval_shape(
          network.init, jax.random.key(0), jnp.float32(inputs)))
  source = pathlib.Path(f'{module}.py')
  (tmp_path / 'model.safetensors').write_bytes(
      saved_models.to_safetensors(config, digits, variables))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    model, loaded = mj.load(tmp_path)
  assert loaded['params']['Dense_0']['kernel'].shape == (1024, 3)
  assert model(loaded, inputs).logits.shape == (2, 10)
  source.write_text(MODULE + '\n')
  with pytest.warns(UserWarning, match=r'Net\(width=3\) has changed since the'):
    mj.load(tmp_path)
  source.unlink()
  with pytest.raises(mj.UserError, match=(
      'module with a source file; got .*PYTHONP')):
    mj.load(tmp_path)
