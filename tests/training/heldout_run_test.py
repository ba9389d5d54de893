"""Runs with held-out data of clients: files, messages, resuming."""

import dataclasses

import numpy as np
import pytest

from benchmarks.common import lines_of
from moon_jax.data import sources, split
from moon_jax.errors import UserError
from moon_jax.training import run
import small_runs

CONFIG = dataclasses.replace(
    small_runs.CONFIG, client_test_fraction=.2, client_eval_every=2)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The directory and the summary of a complete run."""
  path = tmp_path_factory.mktemp('whole')
  return path, run.run(dataclasses.replace(CONFIG, workdir=str(path)))


def test_files_hold_the_split_and_the_last_metrics(whole):
  path, summary = whole
  made = split.make(CONFIG, sources.load('breast_cancer'))
  saved = np.load(path / 'partition.npz')
  for sizes, indices, expected in (
      (saved['sizes'], saved['indices'], made.clients),
      (saved['heldout_sizes'], saved['heldout'], made.client_tests.indices)):
    assert sizes.tolist() == [len(i) for i in expected]
    np.testing.assert_array_equal(indices, np.concatenate(expected))
  assert saved['heldout_part'] == 'train'
  assert not set(saved['indices']) & set(saved['heldout'])
  lines = lines_of(path)
  assert ['global_heldout_accuracy' in line for line in lines] == [
      False, True, True]
  names = [name for name in lines[2] if '_heldout_' in name]
  assert len(names) == 10
  assert {n: summary[n] for n in names} == {n: lines[2][n] for n in names}
  assert 0 < summary['global_heldout_accuracy'] < 1


def test_a_resumed_run_has_the_same_lines(whole, tmp_path, capsys, monkeypatch):
  """And one with other held-out examples does not resume."""
  config = dataclasses.replace(CONFIG, workdir=str(tmp_path))
  run.run(dataclasses.replace(config, num_rounds=2))
  made = split.make(CONFIG, sources.load('breast_cancer'))
  tests = made.client_tests
  other = made._replace(client_tests=tests._replace(
      indices=[tests.indices[0][1:], *tests.indices[1:]]))
  with monkeypatch.context() as changed, pytest.raises(
      UserError, match='--partition=dirichlet gives other clients'):
    changed.setattr(split, 'make', lambda *args: other)
    run.run(config)
  run.run(config)
  assert lines_of(tmp_path) == lines_of(whole[0])
  sizes = tests.sizes
  assert (f'held-out data of clients: {sizes.sum()} training examples, '
          f'{sizes.min()} to {sizes.max()} per client') in (
              capsys.readouterr().out)


@pytest.mark.long
def test_natural_clients_are_evaluated_on_their_test_examples(tmp_path):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(60, 3))
  np.savez(tmp_path / 'data.npz', x_train=x[:40], y_train=np.arange(40) % 2,
           x_test=x[40:], y_test=np.arange(20) % 2,
           client_train=np.arange(40) % 4, client_test=np.arange(20) % 3)
  config = dataclasses.replace(
      CONFIG, dataset='npz', data_dir=str(tmp_path / 'data.npz'),
      partition='natural', num_clients=4, num_rounds=1, participation=1.,
      client_test_fraction=0., client_eval_every=1, workdir=str(
          tmp_path / 'run'))
  run.run(config)
  saved = np.load(tmp_path / 'run' / 'partition.npz')
  assert saved['heldout_part'] == 'test'
  assert saved['heldout_sizes'].tolist() == [7, 7, 6, 0]
  clients = lines_of(tmp_path / 'run')[0]['clients']
  for client, count, accuracy in zip(
      clients['client'], clients['num_heldout'],
      clients['local_heldout_accuracy']):
    assert count == [7, 7, 6, 0][client]
    assert (accuracy is None) == (client == 3)
  with pytest.raises(UserError, match='has them .client_test.; remove'):
    run.run(dataclasses.replace(
        config, client_test_fraction=.1, workdir=str(tmp_path / 'both')))
  # Without an evaluation of clients they are not used.
  run.run(dataclasses.replace(
      config, client_eval_every=0, workdir=str(tmp_path / 'none')))
  assert 'heldout' not in np.load(tmp_path / 'none' / 'partition.npz')
