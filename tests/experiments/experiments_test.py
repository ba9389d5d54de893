"""Tests the shell scripts in experiments/."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize('script', sorted(
    path.name for path in (ROOT / 'experiments').glob('*.sh')))
def test_shell_scripts_have_valid_syntax(script):
  subprocess.run(['bash', '-n', ROOT / 'experiments' / script], check=True)
