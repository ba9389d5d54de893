"""`moon-jax COMMAND` runs the commands of the package."""

import importlib.util
import os
import pathlib
import shlex
import subprocess
import sys

import numpy as np
import pytest

import moon_jax as mj
from moon_jax import __main__ as commands
from moon_jax import data_command
from moon_jax.results import show
from support import inline, made_runs, small_runs


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
    ('train --num_round=3', 2, '',
     'moon-jax train: there is no flag --num_round. Did you mean --num_rounds'),
    ('--version', 0, f'moon_jax {mj.__version__}', ''),
])
def test_the_command_names_what_to_run(
    args, expected, out, err, tmp_path):
  done = inline.run(*args.split(), cwd=tmp_path, module='moon_jax')
  assert done.status == expected and done.err.count('\n') == bool(err)
  assert err in done.err and bool(out) == bool(done.out)
  assert all(word in done.out for word in out.split())


def test_an_installed_script_imports_from_the_current_directory(tmp_path):
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
      [sys.executable, scripts / 'moon-jax', 'data', 'check', '.', 'mine:load'],
      cwd=work, text=True,
      env=os.environ | {'PYTHONPATH': str(pathlib.Path(
          mj.__file__).parents[1])},
      capture_output=True, timeout=60, check=False)
  assert '2 training and 1 test examples' in done.stdout, done.stderr


_NO_HOME = '~nobody-has-this-name/x'


@pytest.mark.parametrize('args', [
    ['show', _NO_HOME], ['show', '.', f'--out={_NO_HOME}'],
    ['data', 'check', _NO_HOME], ['data', 'check', _NO_HOME, 'npz'],
    ['data', 'get', 'mnist', f'--data_dir={_NO_HOME}'],
    ['show', 'x.toml', f'--out={_NO_HOME}'],
    ['show', 'x.toml', f'--workdir={_NO_HOME}'],
    ['train', f'--workdir={_NO_HOME}'], ['train', f'--init_from={_NO_HOME}'],
    ['train', '--dry_run', '--dataset=npz', f'--data_dir={_NO_HOME}'],
], ids=' '.join)
def test_commands_refuse_a_path_of_an_unknown_home(args, tmp_path):
  done = inline.run(*args, cwd=tmp_path, module='moon_jax')
  assert done.status == 2 and 'Traceback' not in done.err
  assert ('must begin with a home directory that exists; got '
          f'{_NO_HOME}. Write the full path' in done.err)


@pytest.mark.parametrize('call', [
    mj.load, mj.results, mj.loggers.CSV,
    lambda path: mj.load_dataset('npz', path),
    lambda path: mj.run(mj.Config(dataset='digits', workdir=path)),
    lambda path: mj.run_sweep(
        mj.Sweep.grid(mj.Config(dataset='digits'), seed=[0]), path)])
def test_python_refuses_a_path_of_an_unknown_home(call):
  with pytest.raises(mj.UserError, match='must begin with a home directory'):
    call(_NO_HOME)


def test_every_path_of_a_user_may_begin_with_the_home(
    run_command, monkeypatch, tmp_path):
  monkeypatch.setenv('HOME', str(tmp_path))
  made_runs.write(tmp_path / 'runs' / 'one')
  np.savez(tmp_path / 'own.npz', x_train=np.eye(2), y_train=[0, 1],
           x_test=np.eye(2), y_test=[0, 1])
  (tmp_path / 'leaf' / 'train').mkdir(parents=True)
  (tmp_path / 'leaf' / 'train' / '0.json').write_text('{}')
  monkeypatch.chdir(tmp_path / 'leaf')  # paths relative to it do not exist
  for main, expected, *args in (
      (show.main, 0, '~/runs/one', '--out=~/out'),
      (data_command.main, 0, 'check', '~/own.npz'),
      (data_command.main, 2, 'check', '~/leaf')):
    status, out, err = run_command(main, *args)
    assert status == expected, (args, err)
  assert 'NAME must be femnist or shakespeare for files of LEAF' in err
  assert (tmp_path / 'out' / 'run.png').exists()
  assert not (tmp_path / 'leaf' / '~').exists()


def test_output_that_takes_ascii_only_has_escaped_names(tmp_path):
  """Of all commands that print the name of a directory."""
  np.savez(tmp_path / 'straße.npz', x_train=np.eye(2), y_train=[0, 1],
           x_test=np.eye(2), y_test=[0, 1])
  flags = [*shlex.split(small_runs.CONFIG.command())[3:], '--num_rounds=1']

  def outputs(*args):
    done = inline.run(
        *args, cwd=tmp_path, module='moon_jax', encoding='ascii')
    assert not done.status, (args, done.err)
    return done.out

  assert r'l\xe4ufe/sweeps/' in outputs(
      'train', *flags, '--grid=seed=0', '--workdir=läufe')
  run, = (tmp_path / 'läufe').glob('breast*')
  for args in (
      ['train', *flags, '--seed=0', f'--workdir=läufe/{run.name}'],
      ['show', f'läufe/{run.name}']):
    assert r'l\xe4ufe/' in outputs(*args)
  assert r'stra\xdfe.npz: complete' in outputs('data', 'check', 'straße.npz')
