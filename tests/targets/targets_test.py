"""Tests the descriptions of GPUs: the package's and a user's files."""

import pathlib
import tomllib

import pytest

from moon_jax import targets
from moon_jax.errors import UserError

_ROOT = pathlib.Path(__file__).parents[2]
L4 = targets.find('l4').text


def test_the_gpus_of_the_package():
  assert targets.names() == ['a100', 'h100', 'h200', 'l4', 'rtx4090']
  found = {name: targets.find(name) for name in targets.names()}
  gigabytes = {name: round(target.memory_bytes / 1e9)
               for name, target in found.items()}
  assert gigabytes == {'a100': 85, 'h100': 85, 'h200': 151, 'l4': 24,
                       'rtx4090': 26}


def test_descriptions_are_installed():
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
  data = project['tool']['setuptools']['package-data']
  assert data['moon_jax.targets'] == ['*.txtpb']


def test_a_user_defined_file(tmp_path):
  path = tmp_path / 'small.txtpb'
  path.write_text(L4.replace('24152899584', '8e9'))
  found = targets.find(str(path))
  assert found.memory_bytes == 8_000_000_000


@pytest.mark.parametrize('name', ['h300', '/'])
def test_an_unknown_name_is_an_error(name):
  with pytest.raises(UserError, match=f'--target={name} is neither a known GPU '
                     'nor a file. Give one of a100, h100, h200'):
    targets.find(name)


@pytest.mark.parametrize('content, words', [
    ('', 'not a valid GpuTargetConfigProto.*device_memory_size.*h200.txtpb'),
    ('\udcff\udcfe', 'cannot be read as text'),
    ('x' * (2**20 + 1), 'at most 1,048,576 bytes, --target=.*1,048,577'),
    (L4.replace('threads_per_warp: 32', ''), 'positive: threads_per_warp'),
    (L4.replace('core_count: 58', 'core_count: 0'), 'positive: core_count. C'),
    (L4.replace('clock_rate_ghz: 2.04', 'clock_rate_ghz: 1e999'),
     'positive: clock_rate_ghz'),
    (L4.replace('core_count: 58', '# core_count: 58'),
     'positive: core_count. Copy')])
def test_invalid_files_are_errors(tmp_path, content, words):
  path = tmp_path / 'gpu.txtpb'
  path.write_bytes(content.encode('utf-8', 'surrogateescape'))
  with pytest.raises(UserError, match=words) as error:
    targets.find(str(path))
  assert f'--target={path}' in str(error.value)
