"""What a round records."""

import types

import numpy as np

from moon_jax import metrics


def test_a_mean_that_is_no_number_is_none():
  """Of an algorithm's own scalars; JSON has no NaN."""
  table = types.SimpleNamespace(
      job_TL=np.array([[0], [0], [-1]]),
      jobs=types.SimpleNamespace(num_steps=np.array([2, 0])))
  found = metrics.of_round(table, types.SimpleNamespace(
      finite_J=np.array([True, True]), loss_TL=np.array([[1.], [2.], [0.]]),
      extra_TL={'own': np.array([[1.], [np.nan], [0.]])},
      drift_J=np.array([.5, 0.]), cosine_R=np.array([np.nan])))
  assert found == {'train_loss': 1.5, 'own': None, 'drift': .5}
