"""The local models of the last round, in Python and in a work directory."""

import json

import jax
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.data import sources
from moon_jax.errors import InterruptedRun, OutOfMemory, UserError
from moon_jax.runs import run
from moon_jax.runs.signals import Interrupt
from moon_jax.simulation import build
from moon_jax.simulation.simulation import Simulation
from support import small_runs


def at(path, **changes):
  return small_runs.at(path, save_local_models=True, **changes)


def read(path):
  """Returns the saved models by client."""
  return {int(file.stem): mj.load(file)[1] for file in sorted(
      (path / 'local_models').iterdir(), key=lambda file: int(file.stem))}


def assert_equal(found, expected):
  assert list(found) == list(expected)
  for client in expected:
    jax.tree.map(np.testing.assert_array_equal, found[client], expected[client])


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'whole'
  run.run(at(path, checkpoint_every=0))
  return path


def test_their_weighted_mean_is_the_global_model(whole):
  data = sources.load_dataset('breast_cancer', '')
  federation = build.federation(at(''), data)
  simulation = Simulation(federation)
  with pytest.raises(UserError, match='a round that this simulation trained'):
    simulation.local_models()
  for _ in range(3):
    simulation.run_round()
  models = dict(simulation.local_models())
  assert list(models) == sorted(federation.rounds.cohorts[2])
  assert len(simulation.local_models()) == 4
  sizes = [len(federation.clients[client]) for client in models]
  mean = jax.tree.map(
      lambda *x: np.average(np.stack(x), axis=0, weights=sizes),
      *models.values())
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6),
               mean, simulation.global_model())
  first, second, *_ = models.values()
  assert (first['params']['out']['kernel']
          != second['params']['out']['kernel']).any()
  assert_equal(read(whole), models)
  jax.tree.map(np.testing.assert_array_equal,
               mj.load(whole)[1], simulation.global_model())
  path = whole / 'local_models' / f'{min(models)}.safetensors'
  model, variables = mj.load(path)
  assert model(variables, data.test_inputs).logits.shape == (
      len(data.test_labels), 2)
  assert not list((whole / 'local_models').glob('*.part'))
  with pytest.raises(UserError, match='keep_local_models=True'):
    Simulation(build.federation(small_runs.CONFIG, data)).local_models()


def test_they_survive_the_end_of_the_last_round(tmp_path, whole, monkeypatch):
  """Its evaluation is not interrupted, and a resumed run keeps them."""
  small_runs.at_call(monkeypatch, Interrupt, 'call', 6, InterruptedRun(2))
  small_runs.run_until(at(tmp_path), 3)
  run.run(at(tmp_path))
  assert_equal(read(tmp_path), read(whole))


def test_they_survive_exhausted_memory(tmp_path, whole):
  """Without a checkpoint of the last round, which would not hold them."""
  with small_runs.ended_at_call(
      Simulation, 'evaluate', 3,
      jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory'),
      OutOfMemory):
    run.run(at(tmp_path, checkpoint_every=2))
  assert [p.name for p in (tmp_path / 'checkpoints').iterdir()
          if p.name.isdecimal()] == ['2']
  run.run(at(tmp_path, checkpoint_every=2))
  assert_equal(read(tmp_path), read(whole))


@pytest.mark.long
def test_a_longer_run_replaces_them(tmp_path, whole):
  run.run(at(tmp_path, num_rounds=2))
  first = set(read(tmp_path))
  run.run(at(tmp_path))
  assert_equal(read(tmp_path), read(whole))
  assert set(read(tmp_path)) != first
  with pytest.raises(UserError, match='save_local_models=True'):
    run.run(small_runs.at(tmp_path))
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['save_local_models']
