"""Checks of the packages, the devices and the machine."""

from importlib import metadata
import os
import pathlib
import platform
import shutil
import subprocess
from typing import Any

from moon_jax.distributed import host as host_lib
from moon_jax.doctor import FAILED, Finding, NOTE, OK
from moon_jax.version import __version__

_REQUIRED = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
_GIB = 2**30
_LEAST_FREE = 2 * _GIB  # of the disk, for checkpoints and the cache


def packages() -> Finding:
  """Finds the versions of the packages that moon_jax requires."""
  versions: dict[str, Any] = {
      'python': platform.python_version(), 'moon_jax': __version__}
  for name in _REQUIRED:
    try:
      versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      versions[name] = None
  missing = [name for name, version in versions.items() if not version]
  text = ', '.join(f'{name} {version}' for name, version in versions.items()
                   if version).replace('python', 'Python', 1)
  if missing:
    return Finding(FAILED, f'{text}; {", ".join(missing)} is missing: pip '
                   f'install {" ".join(missing)}', versions)
  return Finding(OK, f'{text}; {platform.system()} {platform.machine()}',
                 versions | {'system': platform.platform()})


def gpus() -> Finding:
  """Finds NVIDIA GPUs, their driver and JAX's plugin, without JAX."""
  names = _nvidia_gpus()
  plugins = {name: metadata.version(name) for name in sorted(
      dist.name for dist in metadata.distributions()
      if (dist.name or '').lower().startswith(('jax-cuda', 'jax_cuda')))}
  text = ', '.join(f'{name} {version}' for name, version in plugins.items())
  return Finding(NOTE, f'{"; ".join(names) or "no NVIDIA GPU found"}; '
                 f'{text or "no CUDA plugin"}',
                 {'gpus': names, 'plugins': plugins})


def _nvidia_gpus():
  if shutil.which('nvidia-smi'):
    done = subprocess.run(
        ['nvidia-smi', '--format=csv,noheader',
         '--query-gpu=name,driver_version,memory.total'],
        capture_output=True, text=True, timeout=10, check=False)
    if done.returncode == 0 and done.stdout.strip():
      return ['{}, driver {}, {}'.format(*line.split(', '))
              for line in done.stdout.strip().splitlines()]
  return [str(path) for path in sorted(
      pathlib.Path('/dev').glob('nvidia[0-9]*'))]


def devices() -> Finding:
  """Starts JAX and finds its devices.

  A GPU that JAX does not use is a failure, unless JAX_PLATFORMS excludes it.
  """
  host_lib.share_cores()
  import jax

  from moon_jax.distributed import devices as devices_lib

  devices_lib.check()
  local = [{'platform': device.platform, 'kind': device.device_kind,
            'bytes': (device.memory_stats() or {}).get('bytes_limit')}
           for device in jax.local_devices()]
  first, values = local[0], {'devices': local}
  is_cpu = first['platform'] == 'cpu'
  cores = (' (one per core; JAX_NUM_CPU_DEVICES sets their number)' if is_cpu
           else '')
  memory = (f', {first["bytes"] / _GIB:.1f} GiB each for JAX'
            if first['bytes'] else '')
  text = (f'{len(local)} of platform {first["platform"]}{cores}, '
          f'{first["kind"]}{memory}')
  there = '; '.join(_nvidia_gpus()) if is_cpu else ''
  named = os.environ.get('JAX_PLATFORMS', '')
  if there and named:
    return Finding(
        NOTE, f'{text}; JAX_PLATFORMS={named} excludes {there}', values)
  if there:
    return Finding(
        FAILED, f"{text}, but there is {there}: pip install "
        "'moon_jax[cuda13]', or [cuda12] for drivers before version 580 and "
        'GPUs before Turing, and check that nvidia-smi works', values)
  return Finding(OK, text, values)


def host() -> Finding:
  """Finds cores and memory that this process may use."""
  cores, quota = host_lib.num_cores(), host_lib.cgroup_cores()
  total, limit = host_lib.machine_bytes(), host_lib.cgroup_bytes()
  have = host_lib.memory_bytes()
  values = {'cores': cores, 'cgroup_cores': quota, 'bytes': total,
            'cgroup_bytes': limit}
  text = f'{cores} core(s), {have / _GIB:.1f} GiB of memory'
  if have < total:
    text += f' (limited by the cgroup; the machine has {total / _GIB:.1f} GiB)'
  if quota and quota < cores:
    return Finding(
        NOTE, f'{text}; the cgroup allows {quota:g} core(s) of time: set '
        f'JAX_NUM_CPU_DEVICES={max(1, int(quota))}', values)
  return Finding(OK, text, values)


def disk() -> Finding:
  """Finds the free space of the working directory."""
  path = pathlib.Path.cwd()
  free = shutil.disk_usage(path).free
  values = {'directory': str(path), 'free_bytes': free,
            'is_writable': os.access(path, os.W_OK)}
  text = f'{free / _GIB:.1f} GiB free in the working directory {path}'
  if not values['is_writable']:
    return Finding(FAILED, f'{text}, which is not writable: give --workdir=DIR '
                   'to commands, or change to another directory', values)
  if free < _LEAST_FREE:
    return Finding(FAILED, f'{text}: free {_LEAST_FREE / _GIB:.0f} GiB, or '
                   'give --workdir=DIR on another disk', values)
  return Finding(OK, text, values)
