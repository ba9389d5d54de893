"""Runs and sweeps that are killed resume to the same bits."""

import pytest

from benchmarks import kills


@pytest.mark.long
@pytest.mark.parametrize('case, num_kills', [
    ('moon', 1), pytest.param('moon', 3, marks=pytest.mark.slow),
    pytest.param('scaffold', 2, marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_same_bits(case, num_kills, tmp_path):
  """The short form of `python -m benchmarks.kills`."""
  found = kills.compare(case, tmp_path, kills=num_kills, seed=1)
  assert found['same'] and found['rounds'] == 12 * num_kills
  if num_kills > 1:
    assert found['left metrics ahead of checkpoints'] > 0


@pytest.mark.slow
def test_killed_sweeps_resume_to_the_same_bits(tmp_path):
  """The short form of `python -m benchmarks.kills --case=three`."""
  found = kills.compare('three', tmp_path / 'out', kills=6, seed=1)
  assert found['same'] and found['same_runs'] == 6
  assert found['same_tables']
