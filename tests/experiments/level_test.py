"""What is written about FedAvg in PyTorch (amendment 4, part 4)."""

import types

import numpy as np
import pandas as pd
import pytest

from experiments.full import findings


@pytest.mark.parametrize('level, words', [
    (67.4, 'below 67.5%, the limit that was set before. So a run of moon_jax'),
    (67.5, 'not below 67.5%, the limit that was set before')])
def test_the_registered_limit_decides(level, words, tmp_path, monkeypatch):
  """By the mean of the last 10 rounds, not by the last one."""
  accuracies = np.full(100, level)
  accuracies[90:] += np.tile([2., -2.], 5)
  accuracies[:90] = 10.
  monkeypatch.setattr(findings, 'TORCH', tmp_path / 'rounds.csv')
  monkeypatch.setattr(findings, 'SAME_START', tmp_path / 'none')
  assert findings.torch_level() == 'The run has not ended.'
  assert '0 of 1 runs' in findings.moon_left()
  pd.DataFrame({'round': np.arange(1, 101), 'test_accuracy': (
      accuracies / 100)}).to_csv(findings.TORCH, index=False)
  text = findings.torch_level()
  assert f'10 rounds {level:.1f}%, {level - 2:.1f}% after round 100' in text
  assert f'The run is {words}' in text and 'Published: 66.3%' in text
  assert 'FedAvg in PyTorch' not in findings.moon_left()
  assert text.endswith('it has not ended.') == (level < 67.5)


@pytest.mark.parametrize('level, words', [
    (67.4, 'It is below 67.5%, too, so the initial weights may explain'),
    (67.5, 'It is not below 67.5%, so the initial weights alone do not')])
def test_the_run_with_the_same_weights_is_held_to_the_limit(
    level, words, monkeypatch):
  run = types.SimpleNamespace(series=lambda name: [
      (r, (10 if r < 91 else level) / 100) for r in range(1, 101)])
  monkeypatch.setattr(findings, 'SAME_START', findings.TORCH.parent)
  monkeypatch.setattr(findings.kept, 'runs', lambda name: {'one': run})
  text = findings._same_start(67.94)
  assert words in text and 'seed 0 has 67.9%' in text
