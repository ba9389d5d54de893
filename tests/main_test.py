"""`moon-jax COMMAND` runs the commands of the package."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import moon_jax as mj
from moon_jax import __main__ as commands


@pytest.fixture
def run(quick, tmp_path):
  def run(*args):
    done = quick.run(*args, cwd=tmp_path, module='moon_jax')
    return done.status, done.out, done.err

  return run


@pytest.mark.parametrize('name', commands.COMMANDS)
def test_commands_exist(name):
  module, text = commands.COMMANDS[name]
  spec = importlib.util.find_spec(module)  # flags of two modules would clash
  assert 'def main() -> None:' in pathlib.Path(spec.origin).read_text()
  assert text


@pytest.mark.parametrize('args', [[], ['--help'], ['-h']])
def test_without_a_command_it_lists_them(args, run):
  status, out, err = run(*args)
  assert status == 0 and not err
  assert all(name in out for name in commands.COMMANDS)


@pytest.mark.parametrize('word, message', [
    ('trian', "there is no command 'trian'; did you mean train?"),
    ('xyz', "there is no command 'xyz'."),
    ('--num_rounds=3', 'as in moon-jax train --num_rounds=3.'),
])
def test_an_unknown_command_is_an_error(word, message, run):
  status, out, err = run(word)
  assert status == 2 and not out and err.count('\n') == 1
  assert f'{message} The commands are train, sweep, ' in err


def test_the_version_is_printed(run):
  assert run('--version') == (0, f'moon_jax {mj.__version__}\n', '')


def test_a_command_gets_its_flags(run):
  status, _, err = run('train', '--mu=few')
  assert status == 2 and '--mu=few' in err


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
