"""Models that runs export, and runs that start from one of them."""

import dataclasses
import json
import pickle
import shutil
import zipfile

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import moon_jax as mj
from moon_jax import models
from moon_jax.config import Config, Part
from moon_jax.errors import UserError
from moon_jax.runs import run, saved_models
from moon_jax.simulation import build, initial_state
from moon_jax.simulation.simulation import Simulation

pytestmark = pytest.mark.usefixtures('of_command')

CONFIG = Config(
    dataset='digits', model='mlp(projection_dim=8)', num_clients=4,
    num_rounds=2, algorithm='moon', local_epochs=1,
    partition='dirichlet(beta=5)', server='sgd(momentum=.5)',
    checkpoint_every=1)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'first'
  summary = run.run(dataclasses.replace(CONFIG, workdir=str(path)))
  return path, summary


def save(path, *content):
  path.write_bytes(saved_models.to_safetensors(*content))


def test_the_loaded_model_has_the_reported_accuracy_and_loss(
    finished, digits):
  path, summary = finished
  model, variables = mj.load(path)
  logits = np.asarray(model(variables, digits.test_inputs).logits)
  accuracy = (logits.argmax(1) == digits.test_labels).mean()
  assert accuracy == pytest.approx(summary['test_accuracy'], abs=1e-9)
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  loss = -log_p[np.arange(len(logits)), digits.test_labels].mean()
  assert loss == pytest.approx(summary['test_loss'], rel=1e-5)
  assert model.class_names == digits.class_names
  assert model.config['algorithm'] == 'moon'
  listed = (digits.test_inputs[:2] / 255).tolist()
  np.testing.assert_allclose(
      model(variables, listed).logits, logits[:2], atol=1e-4)


@pytest.mark.parametrize('change, words', [
    (lambda x: x.astype('float32'), ['float32 from 0 to 255', 'from 0 to 1',
                                     "inputs.astype('uint8')"]),
    (lambda x: x / 127.5 - 1, ['float32 from -1 to 1', 'normalizes them']),
    (lambda x: x.astype('int32'), ['got int32', "inputs.astype('uint8')"]),
    (lambda x: x[0], ['[B, 32, 32, 1]', 'got shape [32, 32, 1]',
                      'inputs[None]']),
    (lambda x: x[None], ['[B, 32, 32, 1]', 'got shape [1, 8, 32, 32, 1]'])])
def test_a_loaded_model_refuses_inputs_that_it_would_misread(
    change, words, finished, digits):
  """Floats of 0 to 255 were read as 0 to 1, at an accuracy of 94.7%."""
  model, variables = mj.load(finished[0])
  images = np.concatenate([np.full_like(digits.test_inputs[:1], 255),
                           digits.test_inputs[:7]])
  images[1:, :, :, 0] //= 2  # pixels of 0 to 1 are read as they are
  expected = model(variables, images).logits
  np.testing.assert_allclose(
      model(variables, np.float32(images) / 255).logits, expected, atol=1e-5)
  with jax.numpy_dtype_promotion('standard'), pytest.raises(
      UserError) as error:
    model(variables, change(images))
  for word in words:
    assert word in str(error.value)


def test_a_loaded_model_of_features_or_tokens_refuses_other_types(
    tmp_path, digits):
  for inputs, dtype, name in ((np.zeros((3, 4), np.float32), 'uint8', 'mlp'),
                              (np.ones((3, 5), np.int32), 'float32',
                               'char_lstm')):
    dataset = digits._replace(train_inputs=inputs, num_tokens=11)
    tokens = 11 if name == 'char_lstm' else 0
    network = models.make(name, 10, 8, num_tokens=tokens)
    save(tmp_path / name, Config(model=f'{name}(projection_dim=8)'), dataset,
         random_variables(network, jnp.asarray(inputs)))
    model, variables = mj.load(tmp_path / name)
    jax.eval_shape(model, variables, inputs)
    with pytest.raises(UserError, match=f'got {dtype}.*{inputs.dtype}'):
      model(variables, inputs.astype(dtype))


def test_safetensors_holds_names_and_shapes(finished):
  path, _ = finished
  flat = safetensors.numpy.load_file(path / 'model.safetensors')
  assert flat['params.out.kernel'].shape == (8, 10)
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


def test_models_with_running_statistics_and_for_tokens(tmp_path, digits):
  for name, images, tokens, options in (
      ('resnet18', np.zeros((2, 8, 8, 3), np.uint8), 0, {}),
      ('resnet18', np.zeros((2, 8, 8, 3), np.uint8), 0, {'norm': 'group'}),
      ('char_lstm', np.ones((2, 5), np.int8), 11, {})):
    config = Config(model=Part(name).replace(projection_dim=16, **options))
    dataset = digits._replace(
        train_inputs=images, mean=(.5,), std=(.25,), num_tokens=tokens)
    network = models.make(name, 10, 16, num_tokens=tokens, **options)
    variables = random_variables(
        network, jnp.asarray(images, jnp.int32 if tokens else jnp.float32))
    path = tmp_path / '-'.join([name, *options])
    save(path, config, dataset, variables)
    model, loaded = mj.load(path)
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)
    shape = jax.eval_shape(model, loaded, images).logits.shape
    assert shape == (2, 10)


def test_a_loaded_model_computes_at_the_precision_of_its_run(tmp_path, digits):
  """On a GPU; elsewhere it is evaluated in float32."""
  config = Config(model='mlp(projection_dim=8, precision=tf32)')
  inputs = digits.test_inputs[:4]
  at = lambda precision: models.make('mlp', 10, 8, precision=precision)
  save(tmp_path / 'model', config, digits, random_variables(
      at('tf32'), jnp.asarray(inputs, jnp.float32)))
  model, variables = mj.load(tmp_path / 'model')
  on_gpus = jax.jit(lambda x: model(variables, x).logits).trace(inputs).lower(
      lowering_platforms=('cuda',)).as_text()
  assert on_gpus.count('lhs_precision_type = tf32') == 5
  np.testing.assert_array_equal(
      model(variables, inputs).logits,
      model._replace(network=at('highest'))(variables, inputs).logits)


@pytest.mark.long
def test_solo_has_no_global_model(tmp_path):
  run.run(dataclasses.replace(
      CONFIG, algorithm='solo', server='sgd', workdir=str(tmp_path)))
  assert not (tmp_path / 'model.safetensors').exists()
  with pytest.raises(UserError, match='must be a complete model'):
    mj.load(tmp_path)


@pytest.mark.parametrize('damage', [
    lambda content: content[:len(content) // 2],
    lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    lambda content: content.replace(b'"std', b'"stt'),
    lambda content: safetensors.numpy.save({'x': np.ones(2)}),
])
def test_a_damaged_model_is_an_error(damage, finished, tmp_path):
  content = (finished[0] / 'model.safetensors').read_bytes()
  path = tmp_path / 'model.safetensors'
  path.write_bytes(damage(content))
  with pytest.raises(UserError, match='must be a complete model of moon_jax'):
    mj.load(path)


def test_each_form_gives_the_same_bits_and_evaluation(finished, digits):
  path, summary = finished
  _, expected = mj.load(path)
  for form in '', 'model.safetensors', 'checkpoints/2':
    variables = saved_models.load_initial(str(path / form))
    jax.tree.map(np.testing.assert_array_equal, variables, expected)
  simulation = Simulation(build.federation(
      CONFIG, digits, init_variables=variables))
  jax.tree.map(
      np.testing.assert_array_equal, simulation.global_model(), expected)
  found = simulation.evaluate()
  assert found['test_accuracy'] == summary['test_accuracy']
  assert found['test_loss'] == summary['test_loss']


@pytest.mark.long
def test_a_run_continues_where_the_server_keeps_nothing(tmp_path, digits):
  """FedAvg without shuffling: a round depends on the global model alone."""
  config = dataclasses.replace(
      CONFIG, algorithm='fedavg', server='sgd', shuffle=False,
      num_rounds=4)
  whole = Simulation(build.federation(config, digits))
  lines = [record.metrics for record in whole.rounds(4)]
  half = dataclasses.replace(config, num_rounds=2, workdir=str(tmp_path / 'a'))
  run.run(half)
  rest = dataclasses.replace(
      half, init_from=half.workdir, workdir=str(tmp_path / 'b'))
  run.run(rest)
  found = [json.loads(line) for line in open(tmp_path / 'b' / 'metrics.jsonl')]
  for line, expected in zip(found, lines[2:], strict=True):
    for name in 'test_accuracy', 'test_loss', 'train_loss':
      assert line[name] == expected[name]
  jax.tree.map(np.testing.assert_array_equal,
               mj.load(tmp_path / 'b')[1], whole.global_model())
  # The content belongs to the run, and its path does not.
  moved = tmp_path / 'moved.safetensors'
  shutil.copy(tmp_path / 'a' / 'model.safetensors', moved)
  more = dataclasses.replace(rest, init_from=str(moved), num_rounds=3)
  assert run.run(more)['rounds'] == 3
  shutil.copy(tmp_path / 'b' / 'model.safetensors', moved)
  with pytest.raises(UserError, match='--init_from=.* had other content'):
    run.run(more)
  with pytest.raises(UserError, match='--init_from=.* had other content'):
    run.run(dataclasses.replace(more, init_from=''))


def test_clients_of_solo_start_from_it(finished, digits):
  _, variables = mj.load(finished[0])
  simulation = Simulation(build.federation(dataclasses.replace(
      CONFIG, algorithm='solo', server='sgd'), digits,
                                           init_variables=variables))
  jax.tree.map(
      lambda x, y: np.testing.assert_array_equal(
          x[0], np.broadcast_to(y, (4, *y.shape))),
      simulation.state.clients, variables)


def test_other_variables_are_refused(finished, digits, tmp_path):
  path, _ = finished
  config = dataclasses.replace(
      CONFIG, init_from=str(path), workdir=str(tmp_path / 'run'))
  for model, words in (
      ('mlp(projection_dim=16)', [
          'is float32[200, 8], expected float32[200, 16]']),
      ('mlp(projection_dim=None)', ['params.proj', 'nothing there'])):
    with pytest.raises(UserError) as error:
      run.run(dataclasses.replace(config, model=model))
    for word in (f'--init_from={path} must hold', *words):
      assert word in str(error.value)
  _, variables = mj.load(path)
  missing = {'params': dict(variables['params'], other=np.zeros(2))}
  del missing['params']['out']
  bad = jax.tree.map(np.copy, variables)
  bad['params']['out']['bias'][3] = np.nan
  ints = jax.tree.map(lambda x: x.astype(np.int32), variables)
  for given, words in (
      (missing, ['params.out.bias is missing, expected float32[10]',
                 'params.other is float64[2], expected nothing there']),
      (bad, ['NaN or infinity in params.out.bias']),
      (ints, ['is int32[200], expected float32[200]', 'more differences'])):
    with pytest.raises(UserError) as error:
      Simulation(build.federation(CONFIG, digits, init_variables=given))
    for word in ('init_variables must hold', *words):
      assert word in str(error.value)
  halves = jax.tree.map(lambda x: x.astype(np.float16), variables)
  simulation = Simulation(build.federation(
      CONFIG, digits, init_variables=halves))
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(
      x, y.astype(np.float32)), simulation.global_model(), halves)


def test_arrays_are_matched_by_dotted_names():
  """Other programs store a level in one key, and lists by numbers."""
  w, b = np.ones((2, 3), np.float32), np.zeros(3, np.float32)
  for given, expected in (
      ({'fc': {'weight': w}}, {'fc.weight': w}),
      ({'fc.weight': w}, {'fc': {'weight': w}}),
      ({'0': w, '1': b}, [w, b]),
      (flax.core.freeze({'fc': {'weight': w}}), {'fc': {'weight': w}})):
    expected = {'params': expected}
    found = initial_state.checked({'params': given}, expected, 'it')
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_files_of_others_and_damaged_ones(finished, tmp_path):
  path, _ = finished
  flat = safetensors.numpy.load_file(path / 'model.safetensors')
  safetensors.numpy.save_file(flat, tmp_path / 'own.safetensors')
  jax.tree.map(np.testing.assert_array_equal,
               saved_models.load_initial(str(tmp_path / 'own.safetensors')),
               mj.load(path)[1])
  content = bytearray((path / 'model.safetensors').read_bytes())
  content[-3] ^= 1
  (tmp_path / 'changed.safetensors').write_bytes(content)
  (tmp_path / 'cut.safetensors').write_bytes(content[:900])
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'begun').mkdir()
  (tmp_path / 'begun' / 'metrics.jsonl').write_text('')
  shutil.copytree(path / 'checkpoints' / '2', tmp_path / '2')
  for file in (tmp_path / '2').rglob('d/*'):
    file.write_bytes(file.read_bytes()[::-1])
  for name in ('changed.safetensors', 'cut.safetensors', 'empty', 'begun',
               'nothing', '2'):
    with pytest.raises(UserError, match=f'init_from=.*{name} must be a model'):
      saved_models.load_initial(str(tmp_path / name))


def test_files_of_pytorch_are_called_that(tmp_path):
  """Of torch.save, old and new, instead of an error of their first bytes."""
  (tmp_path / 'old.pt').write_bytes(pickle.dumps({'w': [1.]}, 2))
  with zipfile.ZipFile(tmp_path / 'new.pt', 'w') as archive:
    archive.writestr('net/data.pkl', pickle.dumps({'w': [1.]}, 2))
  for name in 'old.pt', 'new.pt':
    for load in saved_models.load_initial, mj.load:
      with pytest.raises(UserError, match='a file of PyTorch.*save_file'):
        load(str(tmp_path / name))
