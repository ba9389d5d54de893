"""Describes the environment of a measurement: device, versions and commit."""

import contextlib
import importlib.metadata
import pathlib
import platform
import subprocess
from typing import Any

from moon_jax.distributed import cpu_devices

_ROOT = pathlib.Path(__file__).parents[2]
_COMMIT_FILE = 'commit.txt'
_PACKAGES = ('jax', 'jaxlib', 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'flax',
             'optax', 'orbax-checkpoint', 'numpy', 'torch')
_NVIDIA_SMI = ('name', 'memory.total', 'driver_version', 'clocks.max.sm',
               'power.limit')


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Returns JAX's device and the versions of installed packages."""
  del task
  import jax

  device = jax.devices()[0]
  stats = device.memory_stats() or {}
  return {
      'device': device.device_kind,
      'platform': device.platform,
      'num_devices': jax.device_count(),
      'bytes_limit': stats.get('bytes_limit'),
      'nvidia_smi': _nvidia_smi(),
      'num_cores': cpu_devices.count(),
      'versions': {'python': platform.python_version()} | {
          name: version for name in _PACKAGES if (version := _version(name))},
  }


def commit(given: str) -> str:
  """Returns `given` if not empty, else git's commit, else that of commit.txt.

  Returns "unknown" if there is none. "+" marks uncommitted changes.
  """
  if given:
    return given
  with contextlib.suppress(OSError, subprocess.CalledProcessError):
    head = _git('rev-parse', 'HEAD')
    return head + '+' * bool(
        _git('status', '--porcelain', '--untracked-files=no'))
  with contextlib.suppress(OSError):
    return (_ROOT / _COMMIT_FILE).read_text(encoding='utf-8').strip()
  return 'unknown'


def _git(*words):
  return subprocess.run(['git', *words], cwd=_ROOT, check=True, text=True,
                        capture_output=True).stdout.strip()


def _version(name):
  with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    return importlib.metadata.version(name)


def _nvidia_smi():
  """Returns nvidia-smi's values for the first GPU, or {} without nvidia-smi."""
  with contextlib.suppress(OSError, subprocess.SubprocessError):
    text = subprocess.run(
        ['nvidia-smi', f'--query-gpu={",".join(_NVIDIA_SMI)}',
         '--format=csv,noheader'], check=True, text=True, timeout=20,
        capture_output=True).stdout
    return dict(zip(_NVIDIA_SMI, text.splitlines()[0].split(', ')))
  return {}
