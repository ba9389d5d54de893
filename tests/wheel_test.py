"""The wheel has all files, installs, and runs from another directory."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

from support import ROOT

pytestmark = pytest.mark.slow  # builds a package and starts processes: 40 s



def _run(*command, **kwargs):
  return subprocess.run(
      list(map(str, command)), text=True, capture_output=True, timeout=1500,
      check=False, **kwargs)


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """Returns a wheel, built from a copy: a build directory may be stale."""
  directory = tmp_path_factory.mktemp('wheel')
  source = directory / 'source'
  shutil.copytree(ROOT / 'moon_jax', source / 'moon_jax',
                  ignore=shutil.ignore_patterns('__pycache__'))
  for name in ('pyproject.toml', 'setup.py', 'MANIFEST.in', 'README.md',
               'LICENSE'):
    shutil.copy(ROOT / name, source)
  (source / 'experiments').mkdir()
  for path in (ROOT / 'experiments').glob('*.flags'):
    shutil.copy(path, source / 'experiments')
  done = _run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '-w',
              directory, source)
  assert not done.returncode, done.stderr
  [path] = directory.glob('*.whl')
  return path


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
  """Returns a function that runs a command of the installed package."""
  target = tmp_path_factory.mktemp('installed')
  elsewhere = tmp_path_factory.mktemp('elsewhere')
  done = _run(sys.executable, '-m', 'pip', 'install', '-q', '--no-deps',
              '--target', target, wheel)
  assert not done.returncode, done.stderr
  environment = os.environ | {'PYTHONPATH': str(target)}

  def run(name, *words):
    return _run(sys.executable, target / 'bin' / name, *words, cwd=elsewhere,
                env=environment)
  run.directory = elsewhere
  return run


def test_it_has_every_file_of_the_package(wheel):
  names = set(zipfile.ZipFile(wheel).namelist())
  expected = {str(path.relative_to(ROOT))
              for path in (ROOT / 'moon_jax').rglob('*')
              if path.is_file() and '__pycache__' not in path.parts}
  assert 'moon_jax/py.typed' in expected
  expected |= {f'moon_jax/recipes/{path.name}'
               for path in (ROOT / 'experiments').glob('*.flags')}
  assert {name for name in names if '.dist-info' not in name} == expected


@pytest.mark.parametrize('words, expected', [
    (['moon-jax', '--help'], 'train'),
    (['moon-jax', 'data', 'list'], 'cifar10'),
    (['moon-jax', 'train', '--help', 'recipe'], 'quickstart'),
])
def test_commands(words, expected, installed):
  done = installed(*words)
  assert not done.returncode and expected in done.stdout


def test_it_trains_in_another_directory(installed):
  done = installed(
      'moon-jax', 'train', '--dataset=digits', '--model=mlp', '--num_rounds=1',
      '--local_epochs=3', '--algorithm=fedavg', '--batch_size=16',
      '--learning_rate=0.05',
      '--workdir=run')
  assert not done.returncode, done.stderr
  summary = json.loads((installed.directory / 'run/summary.json').read_text())
  assert summary['rounds'] == 1 and summary['test_accuracy'] > .3


def test_recipes_of_the_wheel_train(installed):
  done = installed('moon-jax', 'train', '--recipe', 'quickstart',
                   '--num_rounds=1', '--local_epochs=1', '--workdir=recipe')
  assert not done.returncode, done.stderr
  config = json.loads((installed.directory / 'recipe/config.json').read_text())
  assert config['dataset'] == 'digits' and config['num_rounds'] == 1


def test_a_new_environment_needs_the_wheel_only(wheel, tmp_path):
  """pip installs what it requires; a minute, and a gigabyte of disk."""
  _run(sys.executable, '-m', 'venv', tmp_path / 'new')
  scripts = tmp_path / 'new' / ('bin' if os.name == 'posix' else 'Scripts')
  done = _run(scripts / 'python', '-m', 'pip', 'install', '-q', wheel)
  if done.returncode and 'No matching distribution' in done.stderr:
    pytest.skip('needs a package index')
  assert not done.returncode, done.stderr
  environment = {name: value for name, value in os.environ.items()
                 if name != 'PYTHONPATH'}
  done = _run(scripts / 'moon-jax', 'train', '--recipe=quickstart',
              '--workdir=run', cwd=tmp_path, env=environment)
  assert not done.returncode, done.stderr
  summary = json.loads((tmp_path / 'run/summary.json').read_text())
  assert summary['rounds'] == 20 and summary['test_accuracy'] > .9
  done = _run(scripts / 'moon-jax', 'show', 'run', cwd=tmp_path,
              env=environment)
  assert not done.returncode and '20 of 20 rounds' in done.stdout
  _the_tutorial_installs_it(wheel, scripts / 'python', tmp_path, environment)


_NOTEBOOK = '''
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=900, kernel_name='python3').execute()
shown = [output.data for cell in notebook.cells
         for output in cell.get('outputs', ()) if 'data' in output]
assert sum('image/png' in data for data in shown) == 3
assert any('rounds done: 3' in data.get('text/html', '') for data in shown)
import moon_jax
print(moon_jax.__file__)
'''


def _the_tutorial_installs_it(wheel, python, directory, environment):
  """And draws its figures in the notebook."""
  for words in (['uninstall', '-q', '-y', 'moon_jax'],
                ['install', '-q', 'ipykernel', 'nbclient']):
    done = _run(python, '-m', 'pip', *words)
    assert not done.returncode, done.stderr
  done = _run(python, '-c', _NOTEBOOK, ROOT / 'docs' / 'tutorial.ipynb',
              cwd=directory, env=environment | {'MOON_JAX_WHEEL': str(wheel)})
  assert not done.returncode, done.stderr
  assert str(directory) in done.stdout


def test_the_index_takes_wheel_and_source(wheel, tmp_path):
  """`twine check`, and the wheel of the source is the same."""
  for package in 'build', 'twine':
    pytest.importorskip(package, reason="pip install '.[release]'")
  source = pathlib.Path(wheel).parent / 'source'
  done = _run(sys.executable, '-m', 'build', '-o', tmp_path, source)
  assert not done.returncode, done.stderr
  done = _run(sys.executable, '-m', 'twine', 'check', '--strict',
              *tmp_path.iterdir())
  assert not done.returncode and done.stdout.count('PASSED') == 2, done.stdout
  [again] = tmp_path.glob('*.whl')
  assert {*zipfile.ZipFile(again).namelist()} == {
      *zipfile.ZipFile(wheel).namelist()}


def test_the_container_is_built(tmp_path):
  builder = next(filter(shutil.which, ('podman', 'docker')), None)
  if not builder or _run(builder, 'info').returncode:
    pytest.skip('needs podman, or docker with its daemon')
  subprocess.run([builder, 'build', '-q', '-f', 'Containerfile', '-t',
                  'moon_jax_test', '.'], cwd=ROOT, timeout=1800, check=True)
  done = _run(builder, 'run', '--rm', 'moon_jax_test', 'train',
              '--recipe=quickstart', '--num_rounds=1')
  assert not done.returncode, done.stderr


def test_its_descriptions_of_gpus_are_found(installed):
  done = installed('moon-jax', 'train', '--dataset=digits', '--dry_run',
                   '--target=no_such_gpu')
  assert done.returncode == 2 and 'h200' in done.stderr


def test_files_of_the_repository_are_reported_as_missing(installed):
  done = installed('moon-jax', 'show', 'experiments/tables/mu.toml')
  assert done.returncode == 2 and 'experiments/' in done.stderr
  assert 'Traceback' not in done.stderr and len(done.stderr) < 600
