"""Tests descriptions of GPUs, the package's and a user's, and their flag."""

import pathlib
import tomllib

import pytest

from moon_jax import targets
from moon_jax.errors import UserError

_ROOT = pathlib.Path(__file__).parents[2]
L4 = targets.find('l4').text


def test_the_gpus_of_the_package():
  found = {name: round(targets.find(name).memory_bytes / 1e9)
           for name in targets.names()}
  assert found == {'a100': 85, 'h100': 85, 'h200': 151, 'l4': 24, 'rtx4090': 26}
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
  data = project['tool']['setuptools']['package-data']
  assert data['moon_jax.targets'] == ['*.txtpb']


def test_a_user_defined_file(tmp_path):
  path = tmp_path / 'small.txtpb'
  path.write_text(L4.replace('24152899584', '8e9'))
  assert targets.find(str(path)).memory_bytes == 8_000_000_000


@pytest.mark.parametrize('content, words', [
    ('', 'not a valid GpuTargetConfigProto.*device_memory_size.*h200.txtpb'),
    ('\udcff\udcfe', 'cannot be read as text'),
    (L4.replace('threads_per_warp: 32', ''), 'positive: threads_per_warp'),
    (L4.replace('core_count: 58', 'core_count: 0'), 'positive: core_count. C'),
    (L4.replace('core_count: 58', '# core_count: 58'),
     'positive: core_count. Copy')])
def test_invalid_files_are_errors(tmp_path, content, words):
  path = tmp_path / 'gpu.txtpb'
  path.write_bytes(content.encode('utf-8', 'surrogateescape'))
  with pytest.raises(UserError, match=words) as error:
    targets.find(str(path))
  assert f'--target={path}' in str(error.value)


@pytest.mark.parametrize('flags, words', [
    (['--target=a100', '--gbit=10'], '--gbit is not for --target'),
    (['--target=a100', '--processes=2'], '--processes is not for --target'),
    (['--target=h300'], '--target=h300 is neither a known GPU nor a file. '
     'Give one of a100, h100, h200'),
    (['--target=/'], '--target=/ is neither'),
])
def test_invalid_flags_are_refused(flags, words, whole, tmp_path):
  done = whole.run('plan', '--dataset=digits', *flags, cwd=tmp_path,
                   module='moon_jax')
  assert done.status == 2 and words in done.err
