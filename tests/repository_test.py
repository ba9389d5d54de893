"""The files beside the package: what git ignores, what pip installs."""

import ast
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_PROJECT = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']
_EXTRAS = _PROJECT['optional-dependencies']


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
