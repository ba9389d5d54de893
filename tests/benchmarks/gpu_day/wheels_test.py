"""Installing from wheels that were brought along, offline."""

import importlib
import sys
import zipfile

import pytest

from benchmarks.gpu_day import wheels


def make_wheel(directory, name, module):
  """The least that pip takes for a wheel."""
  info = f'{name}-1.0.dist-info'
  with zipfile.ZipFile(directory / f'{name}-1.0-py3-none-any.whl', 'w') as file:
    file.writestr(f'{module}/__init__.py', 'VALUE = 7\n')
    file.writestr(f'{info}/METADATA',
                  f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n')
    file.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nGenerator: x\n'
                  'Root-Is-Purelib: true\nTag: py3-none-any\n')
    file.writestr(f'{info}/RECORD', ''.join(
        f'{path},,\n' for path in (
            f'{module}/__init__.py', f'{info}/METADATA', f'{info}/WHEEL',
            f'{info}/RECORD')))


@pytest.fixture
def places(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', list(sys.path))
  brought, site = tmp_path / 'wheels', tmp_path / 'site'
  brought.mkdir()
  return brought, site


def test_what_is_missing_is_installed(places):
  brought, site = places
  make_wheel(brought, 'gpu_day_example', 'gpu_day_example_module')
  make_wheel(brought, 'numpy', 'numpy')  # is installed, in a later version
  still = wheels.install(brought, site, {
      'gpu_day_example_module': 'gpu-day-example', 'numpy': 'numpy',
      'gpu_day_missing.part': 'gpu-day-missing'})
  assert still == ['gpu-day-missing']
  assert importlib.import_module('gpu_day_example_module').VALUE == 7
  assert not (site / 'numpy').exists()


def test_where_nothing_is_missing_pip_does_not_run(places, monkeypatch):
  monkeypatch.setattr(wheels.subprocess, 'run', None)
  assert wheels.install(*places, {'numpy': 'numpy'}) == []


def test_all_that_is_needed_here_is_known():
  assert not [module for module in wheels.NEEDED
              if module != 'torch' and not wheels._is_there(module)]
