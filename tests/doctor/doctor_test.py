"""moon-jax doctor: its output, and installations that are broken."""

import json
import os
import subprocess
import sys

import pytest

from moon_jax import doctor
from moon_jax.doctor import __main__ as command
from moon_jax.doctor import Finding, installation
from support import ROOT


@pytest.fixture
def few_checks(monkeypatch):
  """Without JAX: what is found, a failure, and an exception."""
  def raising():
    raise SystemExit('the plugin has ended the process')

  for name, check in (('first', lambda: Finding(doctor.OK, 'word ' * 40)),
                      ('broken', raising)):
    monkeypatch.setattr(installation, name, check, raising=False)
  monkeypatch.setattr(command, 'CHECKS', {
      name: ('installation', name) for name in ('first', 'broken', 'host')})


@pytest.mark.usefixtures('few_checks')
def test_a_broken_check_does_not_hide_the_others(run_command):
  status, out, _ = run_command(command.main)
  assert status == 1
  assert 'failed  broken: SystemExit: the plugin has ended the process' in out
  assert 'host: ' in out and '1 of 3 checks failed: broken' in out
  assert max(map(len, out.splitlines())) <= 80
  assert 'Traceback' not in out
  status, out, _ = run_command(command.main, '--json')
  found = json.loads(out)
  assert status == 1 and not found['ok'] and found['failed'] == ['broken']
  assert found['checks']['first']['status'] == 'ok'
  assert found['checks']['host']['values']['cores'] >= 1


@pytest.mark.long
def test_a_broken_jaxlib_is_reported(tmp_path):
  (tmp_path / 'jaxlib.py').write_text(
      'raise ImportError("libcudart is missing")')
  done = subprocess.run(
      [sys.executable, '-m', 'moon_jax', 'doctor', '--json'], text=True,
      capture_output=True, timeout=120, check=False, cwd=tmp_path,
      env={**os.environ, 'PYTHONPATH': f'{tmp_path}:{ROOT}'})
  assert done.returncode == 1 and not done.stderr, done.stderr
  found = json.loads(done.stdout)['checks']
  assert 'libcudart is missing' in found['devices']['text']
  for name in 'devices', 'self-test, training':
    assert found[name]['status'] == 'failed'
  for name in 'packages', 'host', 'disk':
    assert found[name]['status'] == 'ok', found[name]


def test_a_missing_package_is_reported(monkeypatch):
  version = installation.metadata.version

  def without(name):
    if name == 'optax':
      raise installation.metadata.PackageNotFoundError(name)
    return version(name)

  monkeypatch.setattr(installation.metadata, 'version', without)
  found = installation.packages()
  assert found.status == doctor.FAILED
  assert 'optax is missing: pip install optax' in found.text


@pytest.mark.parametrize('named, status, words', [
    ('', 'failed', ('H200', 'moon_jax[cuda13]')),
    ('cpu', 'note', ('H200', 'JAX_PLATFORMS=cpu excludes'))])
def test_a_gpu_that_jax_does_not_use(named, status, words, monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', named)
  monkeypatch.setattr(installation, '_nvidia_gpus', lambda: [
      'NVIDIA H200, driver 570.1, 143771 MiB'])
  found = installation.devices()
  if found.values['devices'][0]['platform'] != 'cpu':
    pytest.skip('JAX uses another device than the CPU')
  assert found.status == status
  assert all(word in found.text for word in words)


def test_limits_of_cgroups_are_reported(monkeypatch):
  monkeypatch.setattr(installation.host_lib, 'cgroup_bytes', lambda: 2**28)
  monkeypatch.setattr(installation.host_lib, 'cgroup_cores', lambda: .5)
  found = installation.host()
  assert found.status == doctor.NOTE
  assert 'JAX_NUM_CPU_DEVICES=1' in found.text and '0.2 GiB' in found.text


def test_a_full_disk_is_a_failure(monkeypatch):
  usage = installation.shutil.disk_usage('.')
  monkeypatch.setattr(installation.shutil, 'disk_usage',
                      lambda path: usage._replace(free=10**6))
  found = installation.disk()
  assert found.status == doctor.FAILED and '--workdir' in found.text
