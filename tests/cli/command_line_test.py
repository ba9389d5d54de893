"""Commands end with the documented exit status and message."""

import argparse
import subprocess
import sys

from absl import flags
from forked import ROOT
import pytest

import moon_jax as mj
from moon_jax.cli import command_line, file_command
from moon_jax.config import Config
from moon_jax.errors import UserError

_SCRIPT = """
import errno
import sys
from moon_jax import errors
from moon_jax.cli import command_line, help_page

def run(config):
  print('mu', config.mu, flush=True)
  {body}

sys.argv[0] = 'command'
command_line.start('command', run, help_page.Page('', [], ''))
"""


@pytest.fixture
def command(whole, tmp_path):
  """Returns a function that runs a command with this body."""
  def run(body, *args):
    (tmp_path / 'own_command.py').write_text(_SCRIPT.format(body=body))
    done = whole.run(*args, cwd=tmp_path, module='own_command')
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


def test_help_for_a_reader_that_ends_is_no_error():
  done = subprocess.run(
      f'{sys.executable} -m moon_jax.train --help | head -1; '
      'exit ${PIPESTATUS[0]}', shell=True, executable='/bin/bash', text=True,
      cwd=ROOT, capture_output=True, timeout=60, check=False)
  assert done.returncode in (0, 141) and not done.stderr
  assert done.stdout.startswith('usage: python -m moon_jax.train')


def test_errors_of_the_library(tmp_path):
  (tmp_path / 'x.flags').write_text('--rounds=3\n')
  with pytest.raises(UserError, match=r'did you mean --num_rounds=3\?'):
    command_line.settings_of_file(tmp_path / 'x.flags', 'where')
  with pytest.raises(UserError, match='did you mean optimizer=sgd'):
    mj.run(mj.Config(dataset='digits', optimizer='SGD'))
  with pytest.raises(UserError, match='did you mean metrics=top5'):
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


@pytest.mark.parametrize('words, message', [
    ('--algorithm=fednova --contrastive=l2',
     '--contrastive=l2 has no effect with --algorithm=fednova; remove it'),
    ('--num_negatives 3 --algorithm fedavg', '--num_negatives=3 has no'),
    ('-mu=5 --algorithm=scaffold', '--mu=5.0 has no effect'),
    ('--norm=group --model=mine:Net',
     '--norm=group has no effect with --model=mine:Net; remove it'),
    ('--contrastive=l2 --temperature=.4',
     '--temperature=0.4 has no effect with --algorithm=moon --contrastive=l2'),
    ('--algorithm=fedavg --num_negatives=1', ''),
    ('--algorithm=fedprox --mu=.1', ''),
    ('--algorithm=mine:make --mu=.1', ''),
    ('--contrastive=l2 --mu=.1', ''),
    ('--flagfile=moon.flags --algorithm=fedavg', ''),
])
def test_flags_without_effect_are_refused_on_the_command_line(
    words, message, parse, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'moon.flags').write_text('--mu=5\n--num_negatives=4\n')
  config, given = parse(*words.split())
  try:
    command_line.check_used(config, given)
    assert not message
  except UserError as error:
    assert message and message in str(error)


@pytest.mark.parametrize('file, algorithm, is_refused', [
    ('--algorithm=moon\n--mu=5\n', 'fedprox', True),
    ('--mu=5\n', 'fedprox', True),  # moon is the default
    ('--algorithm=fedprox\n--mu=5\n', 'fedprox', False),
    ('--algorithm=moon\n--mu=5\n--other=1', 'moon', False),
    ('# --algorithm=fedprox\n--mu=5\n', 'moon', False)])
@pytest.mark.parametrize('form', ['--flagfile={}', '--flagfile {}'])
def test_a_mu_in_a_flag_file_is_for_its_algorithm(
    file, algorithm, is_refused, form, parse, tmp_path):
  (tmp_path / 'a.flags').write_text(file)
  words = [*form.format(tmp_path / 'a.flags').split(),
           f'--algorithm={algorithm}']
  if is_refused:
    with pytest.raises(UserError, match=(
        '--mu=5.0 in the flag file is for --algorithm=moon; give --mu for '
        '--algorithm=fedprox, or --mu=-1 for its default of 0.01')):
      command_line.check_used(*parse(*words))
  else:
    command_line.check_used(*parse(*words))
  command_line.check_used(*parse(*words, '--mu=-1'))
  command_line.check_used(*parse(*words, '--mu=5'))


def test_what_is_given(parse, tmp_path):
  (tmp_path / 'a').write_text('--other=x\n--mu=2\n--noaugment\n')
  config, given = parse(
      f'--flagfile={tmp_path}/a', '--noshuffle', '-mu', '-1', '--beta=.5')
  assert {'shuffle', 'mu', 'beta', 'flagfile'} <= given.flags
  assert not {'augment', 'other', 'seed'} & given.flags
  assert given.of_files == {'mu': 2., 'augment': False} and config.mu == -1


def fail(error):
  def run(_):
    raise error
  return run


@pytest.mark.parametrize('run, argv, status, message', [
    (lambda _: None, 'x', 0, ''),
    (lambda _: 1, 'x', 1, ''),
    (fail(UserError('FILE must exist')), 'x', 2, 'command: FILE must exist\n'),
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
