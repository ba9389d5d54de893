"""Commands end with the documented exit status and message."""

import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_SCRIPT = """
import errno
import sys
from moon_jax import errors
from moon_jax.cli import command_line

def run(config):
  print('mu', config.mu, flush=True)
  {body}

command_line.define_config()
sys.argv[0] = 'command'
command_line.start('command', run)
"""


@pytest.fixture
def command(quick, tmp_path):
  """Returns a function that runs a command with this body."""
  def run(body, *args):
    (tmp_path / 'own_command.py').write_text(_SCRIPT.format(body=body))
    done = quick.run(*args, cwd=tmp_path, module='own_command')
    return done.status, done.out, done.err

  return run


@pytest.mark.parametrize('body, status, words', [
    ('pass', 0, ''),
    ("raise errors.UserError('--mu is wrong')", 2, 'command: --mu is wrong\n'),
    (r"raise errors.UserError('--mu=\x1b[2J\n')", 2,
     'command: --mu=\\x1b[2J\\n\n'),
    ("raise errors.OutOfMemory('out of memory')", 2,
     'command: out of memory\n'),
    ("raise errors.DivergedError('round 3')", 1, 'command: round 3\n'),
    ("raise errors.InterruptedRun(15, ' after round 3')", 143,
     'command: ended by SIGTERM after round 3\n'),
    ('raise KeyboardInterrupt', 130,
     'command: interrupted; the same command resumes'),
    ('raise BrokenPipeError', 141, ''),
    ("raise OSError(errno.ENOSPC, 'disk full', 'file')", 1,
     "command: [Errno 28] disk full: 'file'; make the disk writable"),
    ("raise OSError(errno.EIO, 'broken', 'file')", 1, 'command: [Errno 5]'),
    ("raise OSError(errno.EISDIR, 'no file')", 1, 'Traceback'),
    ("raise KeyError('x')", 1, 'Traceback'),
])
def test_exit_statuses(body, status, words, command):
  actual, out, err = command(body, '--mu=3')
  assert (actual, out) == (status, 'mu 3.0\n'), err
  assert err.startswith(words) and bool(err) == bool(words)
  assert err.count('\n') <= 1 or words == 'Traceback'


@pytest.mark.parametrize('args, words', [
    (['--mu=few'], '--help lists the flags'),
    (['--mu=1', 'word'], "got the positional argument 'word'"),
    (['a', 'word'], "got the positional argument 'a'"),
])
def test_invalid_flags_are_errors(args, words, command):
  status, out, err = command('pass', *args)
  assert (status, out) == (2, '') and words in err


@pytest.mark.parametrize('flag', ['--help', '-h', '--helpfull', '--helpshort'])
def test_help_exits_with_status_0(flag, quick, tmp_path):
  done = quick.run(flag, cwd=tmp_path)
  assert done.status == 0 and not done.err
  assert 'Number of communication rounds.' in done.out


def test_help_for_a_reader_that_ends_is_no_error():
  done = subprocess.run(
      f'{sys.executable} -m moon_jax.train --help | head -1; '
      'exit ${PIPESTATUS[0]}', shell=True, executable='/bin/bash', text=True,
      cwd=_ROOT, capture_output=True, timeout=60, check=False)
  assert done.returncode in (0, 141) and not done.stderr
  assert done.stdout.startswith('usage: python -m moon_jax.train')
