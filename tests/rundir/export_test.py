"""The exported model gives the predictions that the run evaluated."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import moon_jax
from moon_jax import models
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.rundir import export
from moon_jax.training import run

CONFIG = Config(dataset='digits', model='mlp', num_clients=4, num_rounds=2,
                algorithm='moon', local_epochs=1, learning_rate=.02, beta=5.,
                checkpoint_every=0)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp('run')
  return path, run.run(dataclasses.replace(CONFIG, workdir=str(path)))


@pytest.mark.parametrize('name', ['', 'model', 'model.safetensors'])
def test_the_loaded_model_has_the_reported_accuracy_and_loss(name, finished):
  path, summary = finished
  dataset = sources.load('digits', '')
  model, variables = moon_jax.load(path / name)
  logits = np.asarray(model(variables, dataset.test_inputs).logits)
  accuracy = (logits.argmax(1) == dataset.test_labels).mean()
  assert accuracy == pytest.approx(summary['test_accuracy'], abs=1e-9)
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  loss = -log_p[np.arange(len(logits)), dataset.test_labels].mean()
  assert loss == pytest.approx(summary['test_loss'], rel=1e-5)
  assert model.class_names == dataset.class_names
  assert model.config['algorithm'] == 'moon'


def test_safetensors_holds_names_and_shapes(finished):
  path, _ = finished
  flat = safetensors.numpy.load_file(path / 'model.safetensors')
  assert flat['params.out.kernel'].shape == (256, 10)
  assert {x.dtype for x in flat.values()} == {np.dtype(np.float32)}
  with safetensors.safe_open(path / 'model.safetensors', 'numpy') as file:
    note = json.loads(file.metadata()['moon_jax'])
  assert note['mean'] == [pytest.approx(.306, abs=1e-3)]
  assert not note['config']['workdir']


def random_variables(network, inputs):
  """Samples a network's variables without compiling it."""
  return jax.tree.map(
      lambda x: np.random.RandomState(0).randn(*x.shape).astype(x.dtype),
      jax.eval_shape(network.init, jax.random.key(0), inputs))


def test_models_with_running_statistics_and_for_tokens(tmp_path):
  for name, images, tokens, norm in (
      ('resnet18', np.zeros((2, 8, 8, 3), np.uint8), 0, 'batch'),
      ('resnet18', np.zeros((2, 8, 8, 3), np.uint8), 0, 'group'),
      ('char_lstm', np.ones((2, 5), np.int8), 11, 'batch')):
    config = Config(model=name, projection_dim=16, norm=norm)
    dataset = sources.load('digits', '')._replace(
        train_inputs=images, mean=(.5,), std=(.25,), num_tokens=tokens)
    network = models.make(name, 10, 16, norm=norm, num_tokens=tokens)
    variables = random_variables(
        network, jnp.asarray(images, jnp.int32 if tokens else jnp.float32))
    path = tmp_path / f'{name}-{norm}'
    path.mkdir()
    export.save(path, config, dataset, variables)
    model, loaded = moon_jax.load(path)
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)
    shape = jax.eval_shape(model, loaded, images).logits.shape
    assert shape == (2, 10)


def test_a_loaded_model_computes_at_the_precision_of_its_run(tmp_path):
  config = Config(model='mlp', projection_dim=8, precision='tf32')
  dataset = sources.load('digits', '')
  inputs = dataset.test_inputs[:4]
  at = lambda precision: models.make('mlp', 10, 8, precision=precision)
  export.save(tmp_path, config, dataset, random_variables(
      at('tf32'), jnp.asarray(inputs, jnp.float32)))
  model, variables = moon_jax.load(tmp_path)
  found, tf32, highest = (
      jax.jit(lambda x, model=model: model(variables, x).logits)(inputs)
      for model in (model, model._replace(network=at('tf32')),
                    model._replace(network=at('highest'))))
  np.testing.assert_array_equal(found, tf32)
  assert (found != highest).any()


def test_solo_has_no_global_model(tmp_path):
  run.run(dataclasses.replace(
      CONFIG, algorithm='solo', workdir=str(tmp_path)))
  assert not (tmp_path / 'model').exists()
  with pytest.raises(UserError, match='must be a complete model'):
    moon_jax.load(tmp_path)


@pytest.mark.parametrize('damage', [
    lambda content: content[:len(content) // 2],
    lambda content: b'',
    lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    lambda content: content.replace(b'"std', b'"stt'),
    lambda content: b'\x80\x04' + content[2:],
    lambda content: safetensors.numpy.save({'x': np.ones(2)}),
])
def test_a_damaged_model_is_an_error(damage, finished, tmp_path):
  content = (finished[0] / 'model.safetensors').read_bytes()
  path = tmp_path / 'model.safetensors'
  path.write_bytes(damage(content))
  with pytest.raises(UserError, match='must be a complete model of moon_jax'):
    moon_jax.load(path)


def test_a_missing_model_is_an_error(tmp_path):
  with pytest.raises(UserError, match='there is no such file'):
    moon_jax.load(tmp_path / 'nowhere')
