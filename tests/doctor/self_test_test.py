"""The self-test of moon-jax doctor, its figures, and faults that it finds.

`python tests/doctor/self_test_test.py` writes moon_jax/doctor/golden.npz.
"""

import json
import pathlib

from flax import traverse_util
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import doctor, losses
from moon_jax.doctor import self_test

_CLIENT = 1  # of the golden vectors; it has the fewest images


def extract(figures):
  """Returns the arrays of golden.npz from those of simple_cnn.npz."""
  sizes = figures['client_sizes']
  own = slice(sizes[:_CLIENT].sum(), sizes[:_CLIENT + 1].sum())
  run = 'moon_k1_mu5'
  return {'images_u8': figures['images_u8'][own],
          'labels': figures['labels'][own].astype(np.uint8),
          'leaf_names': figures['leaf_names'],
          'losses': figures[f'{run}/losses/{_CLIENT}'],
          'digest': figures[f'{run}/client_digest/{_CLIENT}']}


def test_the_figures_are_the_golden_vectors(golden_cnn):
  shipped, expected = self_test.figures(), extract(golden_cnn)
  assert shipped.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(shipped[name], array)


@pytest.fixture
def fresh():
  """No program and no result of another test."""
  def clear():
    self_test._round.cache_clear()
    self_test._first.cache_clear()

  clear()
  yield
  clear()


@pytest.mark.long
@pytest.mark.usefixtures('optimized', 'fresh')
def test_a_correct_program_passes():
  found = self_test.check_training()
  assert found.status == doctor.OK and 0 < found.values['error'] < 1e-6
  assert json.loads(json.dumps(found.values)) == found.values
  assert self_test.check_repeated().status == doctor.OK


@pytest.mark.long
@pytest.mark.usefixtures('fresh')
def test_a_fault_in_the_loss_is_found(monkeypatch):
  correct = losses.model_contrastive_B
  monkeypatch.setattr(losses, 'model_contrastive_B', lambda *arguments: (
      correct(*arguments) * jnp.float32(1 + 1e-4)))
  found = self_test.check_training()
  assert found.status == doctor.FAILED and 'more than 1e-06' in found.text
  assert found.values['error'] > self_test.TOLERANCE


def test_weights_that_are_no_numbers_are_found(monkeypatch):
  """Weights that have not been trained have the digest of themselves."""
  golden = self_test.figures()
  trained = {'losses': golden['losses'], **traverse_util.flatten_dict(
      self_test._drawn('global')['params'], sep='/')}
  digest = [(np.linalg.norm(w), np.vdot(w, self_test._draw(name, w.shape)))
            for name in golden['leaf_names']
            for w in [np.asarray(trained[name], np.float64)]]
  monkeypatch.setattr(self_test, 'figures', lambda: golden | {'digest': digest})
  monkeypatch.setattr(self_test, '_first', lambda: trained)
  assert self_test.check_training().status == doctor.OK
  name = golden['leaf_names'][-1]
  trained[name] = np.full_like(trained[name], np.nan)
  assert self_test.check_training().status == doctor.FAILED


def test_other_bits_are_found(monkeypatch):
  trained = {'losses': np.ones(3), 'w': np.zeros(2)}
  again = trained | {'w': np.array([0, 1e-9])}
  monkeypatch.setattr(self_test, '_first', lambda: trained)
  monkeypatch.setattr(self_test, 'train', lambda: again)
  found = self_test.check_repeated()
  assert found.status == doctor.FAILED and '1.0e-09' in found.text


if __name__ == '__main__':
  root = pathlib.Path(__file__).parents[2]
  np.savez_compressed(root / 'moon_jax/doctor/golden.npz', **extract(
      np.load(root / 'tests/golden/simple_cnn.npz')))
