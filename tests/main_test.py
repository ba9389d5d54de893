"""`moon-jax COMMAND` runs the commands of the package."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import moon_jax as mj
from moon_jax import __main__ as commands


@pytest.mark.parametrize('name', commands.COMMANDS)
def test_commands_exist(name):
  module, text = commands.COMMANDS[name]
  spec = importlib.util.find_spec(module)  # flags of two modules would clash
  assert 'def main() -> None:' in pathlib.Path(spec.origin).read_text()
  assert text


@pytest.mark.parametrize('args, expected, out, err', [
    *[(args, 0, word, '') for args in ('', '--help', '-h')
      for word in [' '.join(commands.COMMANDS)]],
    ('xyz', 2, '', "there is no command 'xyz'."),
    ('--num_rounds=3', 2, '', 'as in moon-jax train --num_rounds=3.'),
    ('--version', 0, f'moon_jax {mj.__version__}', ''),
])
def test_the_command_names_what_to_run(
    args, expected, out, err, whole, tmp_path):
  done = whole.run(*args.split(), cwd=tmp_path, module='moon_jax')
  assert done.status == expected and done.err.count('\n') == bool(err)
  assert err in done.err and bool(out) == bool(done.out)
  assert all(word in done.out for word in out.split())


@pytest.mark.parametrize('args, text', [
    (['data', 'check', '.', 'mine:load'], '2 training and 1 test examples'),
    (['train', '--algorithm=mine:load', '--algorithm_args=n=1'],
     'The signature of --algorithm=mine:load is load(data_dir)'),
])
def test_an_installed_script_imports_from_the_current_directory(
    tmp_path, args, text):
  scripts, work = tmp_path / 'bin', tmp_path / 'work'
  scripts.mkdir()
  work.mkdir()
  (scripts / 'moon-jax').write_text(
      'from moon_jax.__main__ import main\nmain()\n')
  (work / 'mine.py').write_text('''
import numpy as np

def load(data_dir):
  return dict(x_train=np.ones((2, 3)), y_train=np.array([0, 1]),
              x_test=np.ones((1, 3)), y_test=np.array([1]))
''')
  done = subprocess.run(
      [sys.executable, scripts / 'moon-jax', *args], cwd=work, text=True,
      env=os.environ | {'PYTHONPATH': str(pathlib.Path(
          mj.__file__).parents[1])},
      capture_output=True, timeout=60, check=False)
  assert text in done.stdout + done.stderr
