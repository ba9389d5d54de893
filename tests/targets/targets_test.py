"""Tests the descriptions of GPUs: the package's and a user's files."""

import pathlib
import tomllib

import pytest

from moon_jax import targets
from moon_jax.errors import UserError

_ROOT = pathlib.Path(__file__).parents[2]


def test_the_gpus_of_the_package():
  assert targets.names() == ['a100', 'h100', 'h200', 'l4', 'rtx4090']
  found = {name: targets.find(name) for name in targets.names()}
  assert all(target.has_published_peaks for target in found.values())
  gigabytes = {name: round(target.memory_bytes / 1e9)
               for name, target in found.items()}
  assert gigabytes == {'a100': 85, 'h100': 85, 'h200': 151, 'l4': 24,
                       'rtx4090': 26}
  assert found['h200'].memory_bandwidth == 4.8e12
  assert found['a100'].peak_flops == {
      'float32': 19.5e12, 'tf32': 156e12, 'bfloat16': 312e12}


@pytest.mark.parametrize('name', targets.names())
def test_published_float32_peaks_agree_with_clock_and_units(name):
  """Published peaks are at the boost clock; the field is the maximum clock."""
  target = targets.find(name)
  text = '\n'.join(line for line in target.text.splitlines()
                   if not line.startswith('#'))
  computed = targets._parse('--target=x', text)
  assert not computed.has_published_peaks
  assert set(computed.peak_flops.values()) == {computed.peak_flops['float32']}
  ratio = computed.peak_flops['float32'] / target.peak_flops['float32']
  assert .98 < ratio < 1.02


def test_descriptions_are_installed():
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
  data = project['tool']['setuptools']['package-data']
  assert data['moon_jax.targets'] == ['*.txtpb']


def test_a_user_defined_file(tmp_path):
  path = tmp_path / 'small.txtpb'
  path.write_text(targets.find('l4').text.replace('24152899584', '8e9'))
  found = targets.find(str(path))
  assert found.memory_bytes == 8_000_000_000
  assert found.memory_bandwidth == targets.find('l4').memory_bandwidth


def test_an_unknown_name_is_an_error():
  with pytest.raises(UserError, match='--target=h300 is neither a known GPU '
                     'nor a file. Give one of a100, h100, h200'):
    targets.find('h300')


@pytest.mark.parametrize('content, words', [
    (b'', 'not a valid GpuTargetConfigProto.*device_memory_size'),
    (b'hello', 'h200.txtpb'),
    (b'\xff\xfe\x00', 'cannot be read as text'),
    (b'x' * (2**20 + 1), 'at most 1,048,576 bytes, --target=.*1,048,577'),
])
def test_invalid_files_are_errors(tmp_path, content, words):
  path = tmp_path / 'gpu.txtpb'
  path.write_bytes(content)
  with pytest.raises(UserError, match=words) as error:
    targets.find(str(path))
  assert f'--target={path}' in str(error.value)
  with pytest.raises(UserError, match='nor a file'):
    targets.find(str(tmp_path))


@pytest.mark.parametrize('old, new, words', [
    ('threads_per_warp: 32', '', 'positive: threads_per_warp. Copy'),
    ('core_count: 58', 'core_count: 0', 'positive: core_count. Copy'),
    ('clock_rate_ghz: 2.04', 'clock_rate_ghz: 1e999',
     'positive: clock_rate_ghz'),
    ('core_count: 58', '# core_count: 58', 'positive: core_count. Copy'),
    ('tf32 60', 'tf32 fast', 'must give a number above 0 for each of float32'),
])
def test_missing_fields_and_wrong_peaks_are_errors(
    tmp_path, old, new, words):
  text = targets.find('l4').text
  assert old in text
  path = tmp_path / 'gpu.txtpb'
  path.write_text(text.replace(old, new))
  with pytest.raises(UserError, match=words):
    targets.find(str(path))
