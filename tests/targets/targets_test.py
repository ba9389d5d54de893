"""Tests the descriptions of GPUs."""

import pathlib
import tomllib

from moon_jax import targets

_ROOT = pathlib.Path(__file__).parents[2]


def test_the_gpus_of_the_package():
  found = {name: round(targets.find(name).memory_bytes / 1e9)
           for name in targets.names()}
  assert found == {'a100': 85, 'h100': 85, 'h200': 151, 'l4': 24, 'rtx4090': 26}
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
  data = project['tool']['setuptools']['package-data']
  assert data['moon_jax.targets'] == ['*.txtpb']
