"""Cores become devices; control groups of versions 1 and 2 limit both."""

import os
import types

import jax
import pytest

from moon_jax.distributed import host
from moon_jax.errors import UserError

GIB = 2**30


@pytest.mark.parametrize('own, files, limits', [
    ('0::/', {}, (None, None)),
    ('0::/', {'memory.max': 'max', 'cpu.max': 'max 100000'}, (None, None)),
    ('0::/', {'memory.max': f'{GIB}', 'cpu.max': '50000 100000'}, (GIB, .5)),
    # A service of systemd: the least of its own limit and those above it.
    ('0::/a/b', {'a/b/memory.max': f'{2 * GIB}', 'a/memory.max': f'{GIB}',
                 'a/b/cpu.max': 'max 100000', 'other/memory.max': '1'},
     (GIB, None)),
    # Version 1: the numbers without a limit, and a job of a batch system.
    ('4:memory:/\n5:cpu,cpuacct:/',
     {'memory/memory.limit_in_bytes': '9223372036854771712',
      'cpu/cpu.cfs_quota_us': '-1', 'cpu/cpu.cfs_period_us': '100000'},
     (None, None)),
    ('4:memory:/job\n5:cpu,cpuacct:/job',
     {'memory/job/memory.limit_in_bytes': f'{GIB}',
      'cpu/job/cpu.cfs_quota_us': '150000',
      'cpu/job/cpu.cfs_period_us': '100000'}, (GIB, 1.5)),
    # A container, whose own directory is mounted as the root.
    ('4:memory:/docker/1', {'memory/memory.limit_in_bytes': f'{GIB}'},
     (GIB, None)),
])
def test_limits_of_control_groups(own, files, limits, tmp_path, monkeypatch):
  for name, text in files.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{text}\n')
  (tmp_path / 'own').write_text(own)
  monkeypatch.setattr(host, '_CGROUPS', tmp_path)
  monkeypatch.setattr(host, '_OWN', tmp_path / 'own')
  assert (host.cgroup_bytes(), host.cgroup_cores()) == limits
  monkeypatch.setattr(host, 'machine_bytes', lambda: 4 * GIB)
  assert host.memory_bytes() == (limits[0] or 4 * GIB)


@pytest.mark.parametrize('given, num_cores, expected', [
    ({}, 3, 3), ({}, 64, 16),
    ({'JAX_NUM_CPU_DEVICES': '5'}, 3, None),
    ({'XLA_FLAGS': '--xla_force_host_platform_device_count=4'}, 3, None),
    ({'XLA_FLAGS': '--xla_gpu_deterministic_ops=true'}, 3, 3),
])
def test_each_core_is_a_device(given, num_cores, expected, monkeypatch):
  """Unless the environment sets their number, which stays as it is."""
  assert host.num_cores() >= 1
  for name in 'JAX_NUM_CPU_DEVICES', 'XLA_FLAGS':
    monkeypatch.setenv(name, '')  # so that it is restored afterwards
    monkeypatch.delenv(name)
  for name, value in given.items():
    monkeypatch.setenv(name, value)
  changes, before = {}, dict(os.environ)
  monkeypatch.setattr(jax, 'config', types.SimpleNamespace(
      jax_num_cpu_devices=-1, update=changes.__setitem__))
  monkeypatch.setattr(host, 'num_cores', lambda: num_cores)
  host.share_cores()
  assert changes.get('jax_num_cpu_devices') == expected
  assert dict(os.environ) == before  # that of the processes that it starts


@pytest.mark.parametrize('text', ['abc', '0', '-2', '1.5'])
def test_an_invalid_number_of_cpu_devices_is_refused(text, monkeypatch):
  """JAX would end in a traceback, or blame another variable."""
  monkeypatch.setenv('JAX_NUM_CPU_DEVICES', text)
  with pytest.raises(UserError, match=f'JAX_NUM_CPU_DEVICES .* got {text}. '
                     'Unset it'):
    host.share_cores()
