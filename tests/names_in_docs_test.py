"""Files and names that pages of developers quote exist."""

import ast
import collections
import functools
import pathlib
import re

import pytest

from support import ROOT

DEVELOPERS = 'CONTRIBUTING.md', 'docs/architecture.md'  # all names count
_CODE = ('moon_jax/**/*.py', 'benchmarks/**/*.py', 'docs/site/*.py',
         'experiments/*.py', 'tests/*.py', 'tests/papers/*.py')
_FOLDERS = '', 'moon_jax', 'docs'
_OURS = 'moon_jax/', 'tests/', 'docs/', 'benchmarks/', 'experiments/', (
    'moon_jax.'), 'mj.'  # with which names of all other pages begin
_PLACEHOLDER = re.compile(r'(?<![A-Z_])(NAME|ROUND|DIR)(?![A-Z_])')
# Values that pages name as the code does -> their class.
_CLASSES = {'view': 'View', 'batch': 'Batch', 'message': 'Message',
            'table': 'Table'}
# Of the examples of CONTRIBUTING.md, outside of the repository, made by it, or
# of another commit.
_OTHERS = {'moon_jax/methods/fedhalf.py', 'metrics.jsonl', 'build/site',
           '../shared/golden', 'experiments/runs/', 'benchmarks/frameworks',
           'benchmarks/frameworks/README.md'}


@functools.cache
def identifiers():
  """Returns the identifiers of each module, package and class, by its name.

  Those of the whole repository, and the words of pyproject.toml, are at ''.
  """
  found = collections.defaultdict(set)
  found[''] |= {*re.findall(r'\w+', (ROOT / 'pyproject.toml').read_text())}
  for path in (path for folder in _CODE for path in ROOT.glob(folder)):
    if path.name == pathlib.Path(__file__).name:  # it has names that are wrong
      continue
    places = '', path.stem, path.parent.name
    nodes = [(places, ast.parse(path.read_text(encoding='utf-8')))]
    while nodes:
      within, node = nodes.pop()
      names = {getattr(node, field, None)
               for field in ('name', 'id', 'arg', 'attr')}
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        names.add(node.value)
      for place in within:
        found[place] |= names
      if isinstance(node, ast.ClassDef):
        within = *within, node.name
      nodes += [(within, child) for child in ast.iter_child_nodes(node)]
  return dict(found)


def exists(quoted):
  """Returns whether a file, a name, or a name in a module or class exists."""
  if quoted in _OTHERS or _PLACEHOLDER.search(quoted):
    return True
  if re.search(r'/|\.(py|md|toml|yml|svg)$', quoted):
    return any((ROOT / folder / quoted).exists() for folder in _FOLDERS) or (
        '/' not in quoted
        and any(path for folder in _FOLDERS[1:]
                for path in (ROOT / folder).rglob(quoted)))
  first, *rest = re.sub(r'^(moon_jax|mj)\.', '', quoted).split('.')
  known = identifiers()
  for name in rest:
    place = _CLASSES.get(first, first)
    if name not in known and name not in known.get(place, {name}):
      return False
    first = name
  return bool(rest) or first in known or first in known['']


def quoted_names(page):
  """Yields the quoted words of a page that look like a file or a name."""
  text = (ROOT / page).read_text(encoding='utf-8')
  prose = re.sub(r'^ *```.*?^ *```', '', text, flags=re.M | re.S)
  for quoted in re.findall(r'`([^`]+)`', prose):
    quoted = re.sub(r'\(.*\)$', '', quoted)
    if re.fullmatch(r'[A-Za-z_][\w./-]*', quoted) and (
        page in DEVELOPERS or quoted.startswith(_OURS)):
      yield quoted


@pytest.mark.parametrize('page', [
    *DEVELOPERS, 'BUILD_NOTES.md',
    *(f'docs/{path.name}' for path in sorted((ROOT / 'docs').glob('*.md'))
      if path.name != 'architecture.md')])
def test_quoted_files_and_names_exist(page):
  names = set(quoted_names(page))
  assert len(names) > 50 or page not in DEVELOPERS
  assert not sorted(name for name in names if not exists(name))


@pytest.mark.parametrize('quoted', [
    'moon_jax/algorithms/fedold.py', 'engine/fedold.py', 'needs_plain_sgd',
    'Algorithm.old_field', 'schedule.old_function', 'view.old_field'])
def test_names_that_do_not_exist_are_found(quoted):
  assert not exists(quoted)
