"""Starts commands that read files and directories.

They parse their arguments with argparse. The command that takes the flags of a
run starts with `moon_jax.cli.command_line` instead. Exit statuses are the same.
"""

import argparse
from collections.abc import Callable
import os
import signal
import sys

from moon_jax import errors, user_code
from moon_jax.errors import UserError


def start(parser: argparse.ArgumentParser,
          run: Callable[[argparse.Namespace], int | None],
          has_settings: bool = False) -> None:
  """Parses the arguments and calls `run`. Does not return.

  `run` returns an exit status, None for 0. The parser's `prog` begins error
  messages. With `has_settings` the arguments have `settings`: flags that the
  parser does not have, such as those of runs.
  """
  errors.escape_output()
  arguments, settings = parser.parse_known_args()
  if settings and not has_settings:
    parser.error(f'unrecognized arguments: {" ".join(settings)}')
  arguments.settings = settings
  user_code.search_current_directory()
  try:
    with errors.of_command():
      status = run(arguments)
    sys.stdout.flush()
    sys.exit(status)
  except (UserError, OSError) as error:
    if isinstance(error, BrokenPipeError):  # the reader of the output has ended
      os._exit(errors.BROKEN_PIPE)
    print(f'{parser.prog}: {error}', file=sys.stderr)
    sys.exit(2)
  except KeyboardInterrupt:
    print(f'{parser.prog}: interrupted', file=sys.stderr)
    sys.exit(128 + signal.SIGINT)
