"""Tests the descriptions of GPUs, and their flag."""

import pathlib
import tomllib

import pytest

from moon_jax import targets

_ROOT = pathlib.Path(__file__).parents[2]


def test_the_gpus_of_the_package():
  found = {name: round(targets.find(name).memory_bytes / 1e9)
           for name in targets.names()}
  assert found == {'a100': 85, 'h100': 85, 'h200': 151, 'l4': 24, 'rtx4090': 26}
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
  data = project['tool']['setuptools']['package-data']
  assert data['moon_jax.targets'] == ['*.txtpb']


@pytest.mark.parametrize('flag, words', [
    ('--target=h300', 'rtx4090; got h300; did you mean --target=h'),
    ('--devices=0', '--devices=0')])
def test_invalid_flags_are_refused(flag, words, whole, tmp_path):
  done = whole.run('plan', '--dataset=digits', flag, cwd=tmp_path,
                   module='moon_jax')
  assert done.status == 2 and words in done.err
