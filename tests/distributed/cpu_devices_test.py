"""Cores become devices unless the environment sets their number."""

import os

import pytest

from moon_jax.distributed import cpu_devices


@pytest.mark.parametrize('given, num_cores, expected', [
    ({}, 3, '3'), ({}, 64, '16'),
    ({'JAX_NUM_CPU_DEVICES': '5'}, 3, '5'),
    ({'XLA_FLAGS': '--xla_force_host_platform_device_count=4'}, 3, None),
    ({'XLA_FLAGS': '--xla_gpu_deterministic_ops=true'}, 3, '3'),
])
def test_each_core_is_a_device(given, num_cores, expected, monkeypatch):
  for name in 'JAX_NUM_CPU_DEVICES', 'XLA_FLAGS':
    monkeypatch.setenv(name, '')  # so that it is restored afterwards
    monkeypatch.delenv(name)
  for name, value in given.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(cpu_devices, 'count', lambda: num_cores)
  cpu_devices.share()
  assert os.environ.get('JAX_NUM_CPU_DEVICES') == expected
  assert 1 <= cpu_devices.count()
