"""Commands end with the documented exit status and message."""

import argparse
import subprocess
import sys

from absl import flags
import pytest

import moon_jax as mj
from moon_jax.cli import command_line, file_command
from moon_jax.config import Config
from moon_jax.errors import UserError
from support import inline, ROOT

_SCRIPT = """
import errno
import sys
from moon_jax import errors
from moon_jax.cli import command_line, help_page

def run(config, named, words):
  print(config.algorithm, flush=True)
  {body}

sys.argv[0] = 'command'
command_line.start('command', run, help_page.Page('', [], ''))
"""


@pytest.fixture
def command(tmp_path):
  """Returns a function that runs a command with this body."""
  def run(body, *args):
    (tmp_path / 'own_command.py').write_text(_SCRIPT.format(body=body))
    done = inline.run(*args, cwd=tmp_path, module='own_command')
    return done.status, done.out, done.err

  return run


@pytest.mark.parametrize('body, status, words', [
    ('pass', 0, ''),
    ("raise errors.UserError('', '--seed is wrong')", 2,
     'command: --seed is wrong\n'),
    (r"raise errors.UserError('', '--seed=\x1b[2J\n')", 2,
     'command: --seed=\\x1b[2J\\n\n'),
    ("raise errors.OutOfMemory('', 'out of memory')", 2,
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
  actual, out, err = command(body, '--algorithm.mu=3')
  assert (actual, out) == (status, 'moon(mu=3)\n'), err
  assert err.startswith(words) and bool(err) == bool(words)
  assert err.count('\n') <= 1 or words == 'Traceback'


def test_help_for_a_reader_that_ends_is_no_error():
  done = subprocess.run(
      f'{sys.executable} -m moon_jax.train --help | head -1; '
      'exit ${PIPESTATUS[0]}', shell=True, executable='/bin/bash', text=True,
      cwd=ROOT, capture_output=True, timeout=60, check=False)
  assert done.returncode in (0, 141) and not done.stderr
  assert done.stdout.startswith('usage: python -m moon_jax.train')


def test_errors_of_the_library(tmp_path):
  (tmp_path / 'x.flags').write_text('--num_round=3\n')
  with pytest.raises(UserError, match=r'Did you mean --num_rounds=3\?'):
    command_line.settings_of([f'--flagfile={tmp_path / "x.flags"}'])
  with pytest.raises(UserError, match='Did you mean optimizer=sgd'):
    mj.run(mj.Config(dataset='digits', optimizer='SGD'))
  with pytest.raises(UserError, match='Did you mean metrics=top5'):
    mj.run(mj.Config(dataset='digits', metrics='top-5'))


@pytest.fixture
def parse(monkeypatch):
  """Returns a function that parses words and returns what is given."""
  monkeypatch.setattr(flags, 'FLAGS', flags.FlagValues())
  command_line.define_config(flags.FLAGS)
  flags.DEFINE_string('other', '', '', flag_values=flags.FLAGS)
  flags.FLAGS(['command'])

  def parse(*words):
    flags.FLAGS.unparse_flags()
    rest, given = command_line.parse(words)
    assert not rest
    return Config(**{name: flags.FLAGS[name].value
                     for name in Config.__dataclass_fields__}), given

  return parse


def test_what_is_given(parse, tmp_path):
  """Flags of the command line, which differ from those of a file."""
  (tmp_path / 'a').write_text('--recipe=quickstart\n--num_rounds=2\n--other=x\n'
                              '--algorithm.mu=2\n--noaugment\n')
  config, given = parse(
      f'--flagfile={tmp_path}/a', '--noshuffle', '-algorithm.pool', 'released',
      '--partition.beta=.3')
  assert {'shuffle', 'algorithm.pool', 'partition.beta', 'flagfile'} <= given
  assert not {'augment', 'other', 'seed', 'algorithm.mu'} & given
  assert str(config.algorithm) == 'moon(mu=2, pool=released)'
  assert str(config.partition) == 'dirichlet(beta=0.3)'
  assert not (config.augment or config.shuffle)
  assert (config.dataset, config.num_rounds) == ('digits', 2)


def test_quotes_within_values_of_flag_files(tmp_path):
  (tmp_path / 'a.flags').write_text(
      "--cohort=file\n--cohort.path='my clients.txt'\n"
      "--partition=file(path='my split.npz')\n--workdir='a' or 'b'\n")
  assert command_line.settings_of([f'--flagfile={tmp_path / "a.flags"}']) == {
      'cohort': "file(path='my clients.txt')", 'workdir': "'a' or 'b'",
      'partition': "file(path='my split.npz')"}


def fail(error):
  def run(_):
    raise error
  return run


@pytest.mark.parametrize('run, argv, status, message', [
    (lambda _: None, 'x', 0, ''),
    (lambda _: 1, 'x', 1, ''),
    (fail(UserError('', 'FILE must exist')), 'x', 2,
     'command: FILE must exist\n'),
    (fail(PermissionError(13, 'denied', 'x')), 'x', 2,
     "command: [Errno 13] denied: 'x'\n"),
    (fail(KeyboardInterrupt()), 'x', 130, 'command: interrupted\n'),
    (lambda _: None, '', 2, 'are required: file\n'),
])
def test_exit_statuses_of_commands_that_read_files(
    run, argv, status, message, run_command):
  parser = argparse.ArgumentParser(prog='command')
  parser.add_argument('file')
  ended, _, err = run_command(
      lambda: file_command.start(parser, run), *argv.split())
  assert ended == status and err.endswith(message)
  assert bool(err) == bool(message)
