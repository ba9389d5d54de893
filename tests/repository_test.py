"""The files beside the package: for git, pip and containers."""

import json
import re
import subprocess
import tomllib

import pytest

from moon_jax.version import __version__
from support import ROOT

_FILE = tomllib.loads((ROOT / 'pyproject.toml').read_text('utf-8'))
_PROJECT, _BUILD = _FILE['project'], _FILE['build-system']
_EXTRAS = _PROJECT['optional-dependencies']
_CONTAINER = (ROOT / 'Containerfile').read_text(encoding='utf-8')


@pytest.mark.skipif(not (ROOT / '.git').exists(), reason='not a repository')
@pytest.mark.parametrize('path, is_ignored', [
    ('runs/mine/summary.json', True),
    ('experiments/runs/mine/summary.json', True),
    ('experiments/results/tables/runs/mine/summary.json', False),
    ('experiments/results/sweep/runs/0/metrics.jsonl', False)])
def test_git_keeps_the_runs_of_results(path, is_ignored):
  status = subprocess.run(['git', 'check-ignore', '-q', path], cwd=ROOT)
  assert status.returncode == (0 if is_ignored else 1)


def test_tests_of_the_product_import_no_laboratory():
  """Only tests of benchmarks and experiments import these."""
  importing = re.compile(r'^ *(from|import) (benchmarks|experiments)\b', re.M)
  assert {path.parent.name for path in (ROOT / 'tests').rglob('*.py')
          if importing.search(path.read_text(encoding='utf-8'))} == {
              'benchmarks', 'experiments'}


def test_the_requirements_are_those_of_the_project():
  lines = [line for line in (ROOT / 'requirements.txt').read_text().split('\n')
           if line and not line.startswith('#')]
  [(extras,)] = [re.fullmatch(r'-e \.\[([\w,]+)\]', line).groups()
                 for line in lines]
  assert set(extras.split(',')) == {'cuda12', 'test'} <= set(_EXTRAS)


def test_the_containers_files_exist_and_are_not_ignored():
  kept = {line[1:] for line in (ROOT / '.dockerignore').read_text().split()
          if line.startswith('!')}
  lines = re.findall(r'^COPY (?!--from)(.*) \S+$', _CONTAINER, re.M)
  copied = [word for line in lines for word in line.split()]
  assert {_PROJECT['readme'], *_PROJECT['license-files']} <= {*copied}
  for word in copied:
    assert list(ROOT.glob(word)) and word in kept, word


def test_the_container_runs_the_command_as_a_user_with_a_known_python():
  [extras] = re.findall(r'^# Comma-separated extras of \S+ (.*)\.$', _CONTAINER,
                        re.M)
  assert set(extras.split(', ')) <= set(_EXTRAS)
  [words] = re.findall(r'^ENTRYPOINT (.*)$', _CONTAINER, re.M)
  assert json.loads(words)[0] in _PROJECT['scripts']
  stage = _CONTAINER.rpartition('\nFROM ')[2]
  assert re.findall(r'^USER (.*)$', stage, re.M) == ['1000']
  [python] = re.findall(r'^ARG PYTHON=(\d+\.\d+)\.\d+$', _CONTAINER, re.M)
  assert f'Programming Language :: Python :: {python}' in (
      _PROJECT['classifiers'])


def test_the_recipe_of_conda_is_that_of_the_project():
  yaml = pytest.importorskip('yaml')
  recipe = yaml.safe_load((ROOT / 'recipe' / 'recipe.yaml').read_text('utf-8'))
  needed = dict(map(str.split, recipe['requirements']['run']))
  needed['matplotlib'] = needed.pop('matplotlib-base')  # without Qt
  assert needed.pop('python') == _PROJECT['requires-python']
  assert needed == dict(
      re.fullmatch(r'([\w-]+)(>=.*)', line).groups()
      for line in _PROJECT['dependencies'])
  [script] = recipe['build']['python']['entry_points']
  assert dict([script.split(' = ')]) == _PROJECT['scripts']
  assert recipe['about']['license'] == _PROJECT['license']
  assert recipe['about']['summary'] == _PROJECT['description']
  host = dict(line.split() for line in recipe['requirements']['host']
              if ' ' in line)
  assert [f'setuptools{host["setuptools"]}'] == _BUILD['requires']


@pytest.mark.parametrize('path, pattern', [
    ('CITATION.cff', r'^version: (.*)$'), ('CHANGELOG.md', r'^## \[(\d.*?)\]'),
    ('README.md', r'version = \{(.*)\}'),
    ('recipe/recipe.yaml', r'^  version: (\d.*)$'),
    ('docs/devices.md', r'moon_jax (\d[\d.]+\d),')])
def test_files_name_the_version(path, pattern):
  text = (ROOT / path).read_text(encoding='utf-8')
  assert re.search(pattern, text, re.M)[1] == __version__
