"""Tests the golden vectors in tests/golden and where they are searched."""

import pathlib

import numpy as np
import pytest

from support import golden

SUBSET = pathlib.Path(__file__).with_name('golden')


@pytest.mark.parametrize('name', golden.REDUCTIONS)
def test_subset_equals_the_reduced_golden_vectors(golden_dir, name):
  """The vectors in use may be the full ones or the subset itself."""
  actual = golden.REDUCTIONS[name](dict(np.load(golden_dir / name)))
  expected = dict(np.load(SUBSET / name))
  assert set(actual) == set(expected)
  for key, array in expected.items():
    assert actual[key].dtype == array.dtype
    if key.endswith('_digest'):  # BLAS may sum in a different order
      np.testing.assert_allclose(actual[key], array, rtol=1e-12)
    else:
      np.testing.assert_array_equal(actual[key], array, err_msg=key)


def test_cohorts_equal_the_golden_vectors(golden_dir):
  name = 'sampling.json'
  assert (SUBSET / name).read_text() == (golden_dir / name).read_text()


def test_comparable_entries_have_the_same_positions():
  whole = np.arange(1000.).reshape(20, 50)
  actual, expected = golden.comparable(whole, {'x': whole}, 'x')
  np.testing.assert_array_equal(actual, expected)
  assert actual.shape == (20, 50)
  figures = {'x/sample': golden.sample('x', whole)}
  actual, expected = golden.comparable(whole.copy(order='F'), figures, 'x')
  np.testing.assert_array_equal(actual, expected)
  assert len(set(actual)) == golden.SAMPLE_SIZE
  assert set(actual) != set(golden.sample('y', whole))
  with pytest.raises(KeyError, match='y/sample'):
    golden.comparable(whole, figures, 'y')


def test_complete_full_vectors_have_priority(tmp_path, monkeypatch):
  monkeypatch.delenv('MOON_JAX_GOLDEN', raising=False)
  monkeypatch.setattr(golden, '_FULL', tmp_path)
  for name in golden.FILES:
    assert golden.find() == SUBSET
    (tmp_path / name).touch()
  assert golden.find() == tmp_path
  monkeypatch.setenv('MOON_JAX_GOLDEN', 'tests/golden')
  assert golden.find() == pathlib.Path('tests/golden').absolute()
