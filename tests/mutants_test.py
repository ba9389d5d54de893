"""Tests that the list of faults is up to date, and its command."""

import subprocess
import sys

import mutants
import pytest

FAULTS = mutants.read()
_TESTS = mutants.ROOT / 'tests'


@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: fault.name)
def test_the_old_text_occurs_exactly_once(fault):
  text = (mutants.ROOT / fault.file).read_text(encoding='utf-8')
  mutant = mutants.changed(fault, text)
  compile(mutant, fault.file, 'exec')
  assert mutant != text
  for test in fault.tests:
    path, _, name = test.partition('::')
    function = f'\ndef {name.partition("[")[0]}('
    assert not name or function in (_TESTS / path).read_text(encoding='utf-8')


def test_every_room_has_faults():
  assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 85
  assert {fault.room for fault in FAULTS} == {
      'algorithms', 'privacy', 'losses', 'engine', 'data', 'models', 'rundir',
      'checks', 'evaluation', 'hosts', 'command_line', 'report', 'targets',
      'sweep', 'loggers', 'inspect'}


_FAULT = """
[[{room}]]
name = '{name}'
file = 'moon_jax/a.py'
old = "{old}"
new = "{new}"
fault = 'wrong'
tests = ['{tests}']
reason = '{reason}'
"""
_SIGN = dict(room='data', name='sign', old='max(0', new='min(9', reason='')
_BOUND = dict(room='losses', name='bound', old='0, *x', new='1, *x', reason='')


@pytest.fixture
def command(tmp_path):
  """Returns a function that runs the command on a tiny repository."""
  def write(path, text):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)

  # Without this file an installed package of the same name would be imported.
  write('repo/moon_jax/__init__.py', '')
  write('repo/moon_jax/a.py', 'def largest(x):\n  return max(0, *x)\n')
  write('repo/tests/a_test.py', """if True:
    from moon_jax.a import largest
    def test_largest():
      assert largest([1, 3, 2]) == 3
    """)
  write('repo/pyproject.toml', """[tool.pytest.ini_options]
    pythonpath = ["."]
    python_files = ["*_test.py"]
    addopts = "--import-mode=importlib"
    """)

  def run(*faults, tests='a_test.py'):
    *flags, = (fault for fault in faults if isinstance(fault, str))
    write('faults.toml', ''.join(
        _FAULT.format(tests=tests, **fault)
        for fault in faults if not isinstance(fault, str)))
    return subprocess.run(
        [sys.executable, mutants.__file__, f'--root={tmp_path}/repo',
         f'--faults={tmp_path}/faults.toml', f'--out={tmp_path}/table.md',
         *flags],
        text=True, capture_output=True, timeout=300, check=False)

  return run


@pytest.mark.long
def test_the_command_prints_the_detecting_test(command, tmp_path):
  before = (tmp_path / 'repo/moon_jax/a.py').read_bytes()
  done = command(_SIGN, _BOUND, _SIGN | {'name': 'again'})
  assert done.returncode == 1, done.stderr
  assert done.stdout == (tmp_path / 'table.md').read_text()
  for line in (
      '| data | sign: wrong | `a_test.py::test_largest` | ',
      '| data | again: wrong | `a_test.py::test_largest` | ',
      '| losses | bound: wrong | **not noticed** | ',
      '| losses | 0 of 1 (0%) | ', '| all | 2 of 3 (67%) | '):
    assert line in done.stdout
  assert (tmp_path / 'repo/moon_jax/a.py').read_bytes() == before
  (tmp_path / 'repo/tests/a_test.py').write_text(
      'def test_it():\n  assert 0\n')
  done = command(_SIGN)
  assert 'pass without a fault; got a_test.py::test_it\n' in done.stderr
  assert done.returncode == 1 and not done.stdout
