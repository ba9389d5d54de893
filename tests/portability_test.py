"""The package runs where Python lacks POSIX: on Windows, and on macOS."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import moon_jax as mj
from moon_jax import user_code
from moon_jax.cli import command_line
from moon_jax.config import parts
from moon_jax.errors import UserError
from moon_jax.runs import directory
from support import inline, ROOT

_SETTINGS = dict(
    dataset='digits', model='mlp', num_clients=4, local_epochs=1,
    batch_size=32, learning_rate=.05, algorithm='moon(mu=1)',
    checkpoint_every=1, partition='iid')

# Hides from the modules of moon_jax what Windows does not have. Libraries keep
# it: they have code of their own for Windows.
_HIDING = '''
import builtins, types

MODULES = {'fcntl', 'resource', 'termios', 'tty', 'pty', 'pwd', 'grp', 'curses',
           'readline', 'syslog', 'crypt', 'nis', 'spwd'}
HIDDEN = {
    'os': """fork forkpty sysconf confstr getuid geteuid getgid getegid getpgid
        setsid killpg set_blocking sched_getaffinity mkfifo mknod chown lchown
        statvfs fstatvfs uname nice wait pread pwrite preadv pwritev
        getpriority setpriority register_at_fork posix_fadvise posix_fallocate
        O_DIRECTORY O_NONBLOCK O_CLOEXEC O_SYNC getloadavg openpty ttyname
        initgroups setuid setgid fchmod fchown sync sendfile pipe2""",
    'signal': """SIGKILL SIGHUP SIGPIPE SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGQUIT
        SIGTSTP SIGSTOP SIGCONT SIGWINCH SIGTTOU SIGTTIN alarm setitimer pause
        pthread_kill pthread_sigmask sigwait siginterrupt"""}
real = builtins.__import__
used = set()

class Windows(types.ModuleType):

  def __getattr__(self, name):
    if name in HIDDEN[self.__name__].split():
      raise AttributeError(f'Windows has no {self.__name__}.{name}')
    used.add(f'{self.__name__}.{name}')
    return 'nt' if name == 'name' else getattr(real(self.__name__), name)

modules = {name: Windows(name) for name in HIDDEN}

def hiding(name, globals=None, locals=None, fromlist=(), level=0):
  if (globals or {}).get('__name__', '').partition('.')[0] == 'moon_jax':
    if name in MODULES:
      raise ModuleNotFoundError(f'Windows has no {name}')
    if name in modules:
      return modules[name]
  return real(name, globals, locals, fromlist, level)

builtins.__import__ = hiding
'''
_RUN = f'''
import json, sys
import moon_jax as mj
from moon_jax.results import read

settings = dict({_SETTINGS}, workdir='my run')
mj.run(mj.Config(num_rounds=2, **settings))
summary = mj.run(mj.Config(num_rounds=3, **settings))
assert {{'os.path', 'os.name', 'signal.SIGTERM'}} <= used, used
assert (read.read(read.pathlib.Path('my run')).state.kind) == 'finished'
print(json.dumps(summary))
'''


@pytest.mark.long  # a process that imports and compiles: 8 s
def test_a_run_resumes_without_posix(tmp_path):
  """In a directory with a space in its name, to the numbers of one run."""
  done = subprocess.run(
      [sys.executable, '-c', _HIDING + _RUN], cwd=tmp_path, text=True,
      env=os.environ | {'PYTHONPATH': str(ROOT)}, capture_output=True,
      timeout=300, check=False)
  assert not done.returncode, done.stderr
  assert 'resumes after round 2' in done.stdout
  assert {path.name for path in (tmp_path / 'my run').iterdir()} >= {
      'lock', 'metrics.jsonl', 'checkpoints', 'summary.json'}
  whole = mj.run(mj.Config(
      num_rounds=3, workdir=str(tmp_path / 'whole'), **_SETTINGS))
  assert json.loads(done.stdout.splitlines()[-1])['test_loss'] == (
      pytest.approx(whole['test_loss'], rel=1e-5))


def _type_errors(platform):
  """Returns the errors of mypy, whose stubs know what a platform has."""
  done = subprocess.run(
      [sys.executable, '-m', 'mypy', '--config-file=', '--follow-imports=skip',
       '--ignore-missing-imports', '--no-site-packages', '--check-untyped-defs',
       f'--platform={platform}', f'--cache-dir={os.devnull}', '-p', 'moon_jax'],
      cwd=ROOT, text=True, capture_output=True, timeout=300, check=False)
  assert 'source files)' in done.stdout, done.stdout + done.stderr
  return {line for line in done.stdout.splitlines() if ': error: ' in line}


@pytest.mark.long
def test_other_platforms_have_every_name_that_the_package_uses():
  pytest.importorskip('mypy')
  linux = _type_errors('linux')
  assert not _type_errors('win32') - linux
  assert not _type_errors('darwin') - linux


def test_the_lock_ends_with_a_process_that_is_killed(tmp_path):
  """Also on a file of its own, as on Windows."""
  code = f'''
import time
from moon_jax.runs import directory
file = open({str(tmp_path / 'lock')!r}, 'ab')
assert directory.try_lock(file)
print('locked', flush=True)
time.sleep(60)
'''
  holder = subprocess.Popen(
      [sys.executable, '-c', code], text=True, stdout=subprocess.PIPE,
      env=os.environ | {'PYTHONPATH': str(ROOT)})
  try:
    assert holder.stdout.readline() == 'locked\n'
    with open(tmp_path / 'lock', 'ab') as file:
      assert not directory.try_lock(file)
      holder.send_signal(signal.SIGKILL)
      holder.wait(30)
      assert directory.try_lock(file)
  finally:
    holder.kill()


def test_text_files_name_their_encoding():
  """Windows has another default than UTF-8."""
  ruff = subprocess.run(
      [sys.executable, '-m', 'ruff', 'check', '--isolated', '--preview',
       '--select=PLW1514', '--output-format=concise', 'moon_jax'],
      cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)
  if 'No module named ruff' in ruff.stderr:
    pytest.skip('needs ruff')
  assert 'All checks passed' in ruff.stdout, ruff.stdout


@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_flag_files_of_windows(end, tmp_path):
  path = tmp_path / 'a file.flags'
  path.write_bytes(end.join([
      '\ufeff# MOON', '--data_dir=C:\\my data\\#1', '--num_rounds=3', '',
      "--partition=file(path='C:\\\\my data\\\\new.npz')",
      '--cohort=file(path=C:\\new\\t.txt)', '--augment']).encode())
  assert command_line.settings_of([f'--flagfile={path}', '--seed=1']) == {
      'data_dir': 'C:\\my data\\#1', 'num_rounds': 3, 'augment': True,
      'partition': "file(path='C:\\\\my data\\\\new.npz')", 'seed': 1,
      'cohort': 'file(path=C:\\new\\t.txt)'}


@pytest.mark.parametrize('written, path', [
    ('file(path=C:\\new\\t.txt)', 'C:\\new\\t.txt'),
    ("file(path='C:/my data/t.txt')", 'C:/my data/t.txt'),
    ("file(path='C:\\\\my data\\\\t.txt')", 'C:\\my data\\t.txt')])
def test_paths_with_drives_are_arguments(written, path):
  part = parts.parse('cohort', written)
  assert part['path'] == path
  assert parts.parse('cohort', str(part)) == part
  assert command_line.with_parts([f'--cohort.path={path}', '--seed=1'])[-1] == (
      '--seed=1')


@pytest.mark.parametrize('text, message', [
    ("file(path='C:\\new data\\t.txt')", r'write / or \\\\ instead of \\'),
    ("'moon(mu=5)'", 'remove the inner quotes; cmd.exe of Windows takes only')])
def test_quotes_that_windows_reads_otherwise_are_refused(text, message):
  with pytest.raises(UserError, match=message):
    parts.parse('cohort', text)


@pytest.mark.parametrize('module', [
    'C:\\my code\\mine.py', '..\\mine.py', 'code\\mine', 'C:/code/mine.py'])
def test_a_module_is_not_a_path_of_windows(module):
  with pytest.raises(UserError, match=re.escape(
      'model=mine:load in the directory of mine.py')):
    user_code.load('model', f'{module}:load')


def test_lines_of_windows_are_read(tmp_path):
  """Of files that an editor or git has written with CR LF."""
  assert directory.read_lines(tmp_path) == []
  (tmp_path / 'metrics.jsonl').write_bytes(
      b'{"round": 1}\r\n{"round": 2}\r\n{"rou')
  assert directory.read_lines(tmp_path) == [{'round': 1}, {'round': 2}]
  (tmp_path / 'grid.toml').write_bytes(
      b'dataset = "digits"\r\nmodel = "mlp"\r\nseed = [0, 1]\r\n')
  done = inline.run('train', 'grid.toml', '--dry_run', cwd=tmp_path,
                    module='moon_jax')
  assert not done.status and '2 runs' in done.out, done.err
