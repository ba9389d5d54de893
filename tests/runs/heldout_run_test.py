"""Runs with held-out data of clients: files, messages, resuming."""

import dataclasses

import numpy as np
import pytest

from moon_jax.data import sources, split
from moon_jax.errors import UserError
from moon_jax.runs import run
from support import small_runs
from support.small_runs import lines_of

CONFIG = dataclasses.replace(
    small_runs.CONFIG, client_test_fraction=.2, client_eval_every=2)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The directory and the summary of a complete run."""
  path = tmp_path_factory.mktemp('whole')
  return path, run.run(dataclasses.replace(CONFIG, workdir=str(path)))


def test_files_hold_the_split_and_the_last_metrics(whole):
  path, summary = whole
  made = split.make(CONFIG, sources.load_dataset('breast_cancer'))
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
  assert len(names) == 12
  assert {n: summary[n] for n in names} == {n: lines[2][n] for n in names}
  assert 0 < summary['global_heldout_accuracy'] < 1


@pytest.mark.long
def test_a_resumed_run_has_the_same_lines(whole, tmp_path, capsys, monkeypatch):
  """And one with other held-out examples does not resume."""
  config = dataclasses.replace(CONFIG, workdir=str(tmp_path))
  run.run(dataclasses.replace(config, num_rounds=2))
  made = split.make(CONFIG, sources.load_dataset('breast_cancer'))
  tests = made.client_tests
  other = made._replace(client_tests=tests._replace(
      indices=[tests.indices[0][1:], *tests.indices[1:]]))
  with monkeypatch.context() as changed, pytest.raises(
      UserError, match=r'partition=dirichlet\(beta=5\) gives other cl'):
    changed.setattr(split, 'make', lambda *args: other)
    run.run(config)
  run.run(config)
  assert lines_of(tmp_path) == lines_of(whole[0])
  sizes = tests.sizes
  assert (f'held-out data of clients: {sizes.sum()} training examples, '
          f'{sizes.min()} to {sizes.max()} per client') in (
              capsys.readouterr().out)
