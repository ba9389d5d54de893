"""Tests installing missing packages from wheels, offline."""

import importlib
import sys
import zipfile

import pytest

from benchmarks.gpu_day import wheels


def make_wheel(directory, name, module):
  """Writes the smallest wheel that pip accepts."""
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
def directories(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', list(sys.path))
  directory, site = tmp_path / 'wheels', tmp_path / 'site'
  directory.mkdir()
  return directory, site


def test_missing_packages_are_installed(directories):
  directory, site = directories
  make_wheel(directory, 'gpu_day_example', 'gpu_day_example_module')
  make_wheel(directory, 'numpy', 'numpy')  # a later version is installed
  missing = wheels.install(directory, site, {
      'gpu_day_example_module': 'gpu-day-example', 'numpy': 'numpy',
      'gpu_day_missing.part': 'gpu-day-missing'})
  assert missing == ['gpu-day-missing']
  assert importlib.import_module('gpu_day_example_module').VALUE == 7
  assert not (site / 'numpy').exists()


def test_pip_does_not_run_if_nothing_is_missing(directories, monkeypatch):
  monkeypatch.setattr(wheels.subprocess, 'run', None)
  assert wheels.install(*directories, {'numpy': 'numpy'}) == []


def test_needed_modules_are_installed_here():
  assert not [module for module in wheels.NEEDED
              if module != 'torch' and not wheels._has_module(module)]
