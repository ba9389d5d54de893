"""Runs that start from the model of another run."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import moon_jax as mj
from moon_jax import models
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.rundir import checkpoint, export
from moon_jax.simulation import build
from moon_jax.simulation.simulation import Simulation
from moon_jax.training import run

CONFIG = Config(
    dataset='digits', model='mlp', projection_dim=8, num_clients=4,
    num_rounds=2, algorithm='moon', local_epochs=1, beta=5.,
    server_momentum=.5, checkpoint_every=1)
_FORMS = '', 'model', 'model.safetensors', 'checkpoints/2'


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'first'
  return path, run.run(dataclasses.replace(CONFIG, workdir=str(path)))


@pytest.fixture(scope='module')
def digits():
  return sources.load('digits', '')


@pytest.mark.parametrize('form', _FORMS)
def test_each_form_gives_the_same_bits_and_evaluation(form, finished, digits):
  path, summary = finished
  variables = export.load_initial(str(path / form))
  _, expected = mj.load(path)
  jax.tree.map(np.testing.assert_array_equal, variables, expected)
  assert export.fingerprint(variables) == export.fingerprint(expected)
  simulation = Simulation(build.federation(
      CONFIG, digits, init_variables=variables))
  jax.tree.map(
      np.testing.assert_array_equal, simulation.global_model(), expected)
  found = simulation.evaluate()
  assert found['test_accuracy'] == summary['test_accuracy']
  assert found['test_loss'] == summary['test_loss']


def test_a_run_continues_where_the_server_keeps_nothing(tmp_path, digits):
  """FedAvg without shuffling: a round depends on the global model alone."""
  config = dataclasses.replace(
      CONFIG, algorithm='fedavg', server_momentum=0., shuffle=False,
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
  with pytest.raises(UserError, match='init_from=.* had other content'):
    run.run(more)
  with pytest.raises(UserError, match='init_from=.* had other content'):
    run.run(dataclasses.replace(more, init_from=''))


def test_batch_statistics_are_taken_from_each_form(tmp_path, digits):
  config = Config(model='resnet18', projection_dim=8)
  network = models.make('resnet18', 10, 8)
  example = jnp.zeros((1, 8, 8, 1))
  shapes = jax.eval_shape(network.init, jax.random.key(0), example)
  variables = jax.tree.map(
      lambda x: np.random.RandomState(0).randn(*x.shape).astype(x.dtype),
      shapes)
  assert 'batch_stats' in variables
  export.save(tmp_path, config, digits, variables)
  checkpoints = checkpoint.Checkpoints(tmp_path / 'checkpoints', config)
  checkpoints.open()
  from moon_jax.algorithms.fedavg import fedavg
  from moon_jax.engine import state as state_lib
  from moon_jax.simulation import initial_state
  start = initial_state.checked(variables, shapes, 'x')
  state = state_lib.init([0], network, fedavg(), 3, example, start)
  checkpoints.save(state_lib.on_host(state._replace(round=jnp.int32(2))), {})
  checkpoints.close()
  for form in _FORMS:
    loaded = export.load_initial(str(tmp_path / form))
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)
    assert jax.tree.structure(loaded) == jax.tree.structure(variables)


def test_clients_of_solo_start_from_it(finished, digits):
  _, variables = mj.load(finished[0])
  simulation = Simulation(build.federation(dataclasses.replace(
      CONFIG, algorithm='solo', server_momentum=0.), digits,
                                           init_variables=variables))
  jax.tree.map(
      lambda x, y: np.testing.assert_array_equal(
          x[0], np.broadcast_to(y, (4, *y.shape))),
      simulation.state.clients, variables)


def test_other_variables_are_refused(finished, digits, tmp_path):
  path, _ = finished
  config = dataclasses.replace(
      CONFIG, init_from=str(path), workdir=str(tmp_path / 'run'))
  for changes, words in (
      (dict(projection_dim=16), ['different', 'float32[200,8] instead of '
                                 'float32[200,16]']),
      (dict(projection_head=False), ['4 unexpected', 'params.proj'])):
    with pytest.raises(UserError) as error:
      run.run(dataclasses.replace(config, **changes))
    for word in (f'--init_from={path} must hold', *words):
      assert word in str(error.value)
  _, variables = mj.load(path)
  missing = {'params': dict(variables['params'], other=np.zeros(2))}
  del missing['params']['out']
  bad = jax.tree.map(np.copy, variables)
  bad['params']['out']['bias'][3] = np.nan
  ints = jax.tree.map(lambda x: x.astype(np.int32), variables)
  for given, words in (
      (missing, ['2 missing (params.out.bias float32[10], params.out.kernel',
                 '1 unexpected (params.other float64[2])']),
      (bad, ['NaN or infinity in params.out.bias']),
      (ints, ['int32[200] instead of float32[200]', ', ...)'])):
    with pytest.raises(UserError) as error:
      Simulation(build.federation(CONFIG, digits, init_variables=given))
    for word in ('init_variables must hold', *words):
      assert word in str(error.value)
  halves = jax.tree.map(lambda x: x.astype(np.float16), variables)
  simulation = Simulation(build.federation(
      CONFIG, digits, init_variables=halves))
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(
      x, y.astype(np.float32)), simulation.global_model(), halves)


def test_files_of_others_and_damaged_ones(finished, tmp_path):
  path, _ = finished
  flat = safetensors.numpy.load_file(path / 'model.safetensors')
  safetensors.numpy.save_file(flat, tmp_path / 'own.safetensors')
  jax.tree.map(np.testing.assert_array_equal,
               export.load_initial(str(tmp_path / 'own.safetensors')),
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
      export.load_initial(str(tmp_path / name))
