"""What is written about FedAvg in PyTorch (amendment 4, part 4)."""

import types

import numpy as np
import pandas as pd
import pytest

from experiments.full import findings, questions
from moon_jax.results import stats


@pytest.mark.parametrize('level, again, words', [
    (67.5, 60., 'The run in PyTorch is not below 67.5%'),
    (67.4, None, 'is below 67.5%, the registered limit. The registered run of '
     'moon_jax has not ended.'),
    (67.4, 67.4, 'Both runs are below 67.5%, the registered limit'),
    (67.4, 67.5, 'the run of moon_jax is not')])
def test_the_registered_limit_decides(
    level, again, words, tmp_path, monkeypatch):
  """By the mean of the last 10 rounds, not by the last one."""
  accuracies = np.full(100, level)
  accuracies[90:] += np.tile([2., -2.], 5)
  accuracies[:90] = 10.
  monkeypatch.setattr(findings, 'TORCH', tmp_path / 'rounds.csv')
  if again is None:
    monkeypatch.setattr(findings, 'SAME_START', tmp_path / 'none')
  run = types.SimpleNamespace(values=lambda name: [
      (10 if r < 91 else again) / 100 for r in range(1, 101)])
  monkeypatch.setattr(findings.kept, 'runs', lambda name: {'one': run})
  assert findings.torch_level() == 'The run has not ended.'
  assert '0 of 1 runs' in findings.moon_left()
  pd.DataFrame({'round': np.arange(1, 101), 'test_accuracy': (
      accuracies / 100)}).to_csv(findings.TORCH, index=False)
  text = findings.torch_level()
  assert f'10 rounds is {level:.1f}% in PyTorch' in text
  assert f'after round 100 the accuracy is {level - 2:.1f}%' in text
  assert words in text and 'Published: 66.3 ± 0.5%' in text
  assert 'FedAvg in PyTorch' not in findings.moon_left()


def test_the_interval_of_one_more_run_is_that_of_a_prediction():
  """The t distribution with 3 degrees of freedom has .975 at 3.182."""
  ours = np.array([stats.mean_of_last(block.baseline)
                   for block in findings._blocks(questions.SPLIT)])
  half = 3.1824 * ours.std(ddof=1) * (5 / 4) ** .5
  assert (f'{ours.mean() - half:.1f} to {ours.mean() + half:.1f}%' in (
      findings.torch_level()))
