"""Commands that read files end with the documented status and message."""

import argparse

import pytest

from moon_jax.cli import file_command
from moon_jax.errors import UserError


def outcome(run, argv, capsys):
  parser = argparse.ArgumentParser(prog='command')
  parser.add_argument('file')
  with pytest.raises(SystemExit) as end:
    file_command.start(parser, run, argv)
  return end.value.code or 0, capsys.readouterr().err


def fail(error):
  def run(_):
    raise error
  return run


@pytest.mark.parametrize('run, status, message', [
    (lambda _: None, 0, ''),
    (lambda _: 1, 1, ''),
    (fail(UserError('FILE must exist')), 2, 'command: FILE must exist\n'),
    (fail(PermissionError(13, 'denied', 'x')), 2,
     "command: [Errno 13] denied: 'x'\n"),
    (fail(KeyboardInterrupt()), 130, 'command: interrupted\n'),
])
def test_exit_statuses(run, status, message, capsys):
  assert outcome(run, ['x'], capsys) == (status, message)


def test_a_missing_argument_is_reported(capsys):
  status, message = outcome(lambda _: None, [], capsys)
  assert status == 2 and 'file' in message
