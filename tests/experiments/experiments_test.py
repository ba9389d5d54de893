"""Tests the commands in experiments/ with small budgets."""

import pathlib
import subprocess
import sys

import pytest

from experiments import num_negatives
from moon_jax.report import negatives

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_ablation_over_k(tmp_path, monkeypatch, capfd, compilation_cache):
  """Runs on digits; a second command repeats no run; errors are reported."""
  monkeypatch.setitem(num_negatives._BUDGETS, 'smoke', (2, 1, (1,), 1))
  monkeypatch.setattr(negatives, 'PUBLISHED', {1: .691, 5: .677})
  monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', compilation_cache)
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  out = tmp_path / 'out'
  command = ['', '--budget=smoke', f'--out_dir={out}', '--dataset=digits',
             '--learning_rate=0.02', '--checkpoint_every=0', '--model=mlp']
  monkeypatch.setattr(sys, 'argv', command)
  assert num_negatives.main() == 0
  assert {path.name for path in out.iterdir()} == {
      'num_negatives.md', 'num_negatives.png', 'k1-mu1-seed0',
      'k5-mu1-seed0'}
  rows = (out / 'num_negatives.md').read_text().splitlines()[2:]
  assert [row.split()[1] for row in rows] == ['1', '5']
  assert [row.split()[-2] for row in rows] == ['0.691', '0.677']
  # In two rounds no client has more than one negative.
  assert rows[0].split()[3] == rows[1].split()[3]

  assert num_negatives.main() == 0
  assert capfd.readouterr().out.count('holds this run, done') == 2
  monkeypatch.setattr(sys, 'argv', [*command, '--beta=0'])
  assert num_negatives.main() == 2
  monkeypatch.setattr(sys, 'argv', [*command, '--seed=3'])
  with pytest.raises(SystemExit):
    num_negatives.main()
  assert '--seed=3 is set by the ablation' in capfd.readouterr().err


@pytest.mark.parametrize('script', sorted(
    path.name for path in (ROOT / 'experiments').glob('*.sh')))
def test_shell_scripts_have_valid_syntax(script):
  subprocess.run(['bash', '-n', ROOT / 'experiments' / script], check=True)
