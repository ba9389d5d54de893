"""Describes the environment of a benchmark: command, versions and hardware."""

import importlib.metadata
import os
import pathlib
import platform
import sys
from typing import Any

from moon_jax.distributed import host

_PACKAGES = ('moon_jax', 'jax', 'jaxlib', 'torch', 'numpy')
# Flags whose value is a path, and the text that replaces it.
_PATHS = {'data_dir': 'DATA_DIR', 'golden': 'GOLDEN', 'out': 'OUT'}


def describe() -> dict[str, Any]:
  """Returns what a benchmark's figures depend on besides the code."""
  return {
      'command': command(sys.argv[1:]),
      'versions': {'python': platform.python_version()} | {
          name: _version(name) for name in _PACKAGES},
      'cpu': _cpu(),
      'num_cores': host.num_cores(),
      'load_average_before': os.getloadavg()[0],
      'compilation_cache': 'off'}


def command(args: list[str]) -> str:
  """Returns the command of benchmarks/bench.py without this machine's paths."""
  words = ['python -m benchmarks.bench']
  for arg in args:
    name, equals, _ = arg.partition('=')
    placeholder = _PATHS.get(name.lstrip('-'))
    words.append(f'{name}={placeholder}' if placeholder and equals else arg)
  return ' '.join(words)


def _version(name):
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None


def _cpu():
  cpuinfo = pathlib.Path('/proc/cpuinfo')
  for line in (cpuinfo.read_text() if cpuinfo.exists() else '').splitlines():
    if line.startswith('model name'):
      return line.partition(':')[2].strip()
  return platform.processor()
