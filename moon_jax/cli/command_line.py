"""What the commands of moon_jax share: every field of `Config` is a flag.

Exit status: 0 done; 2 a mistake of the user's, told in a line or two; 128 and a
signal's number where one ended it; 1 anything else.
"""

from collections.abc import Callable
import dataclasses
import errno
import json
import os
import signal
import sys
import traceback

from absl import app
from absl import flags
from absl import logging

from moon_jax.config import Config
from moon_jax.distributed import cpu_devices
from moon_jax.distributed import processes
from moon_jax.engine import lanes
from moon_jax.errors import DivergedError
from moon_jax.errors import InterruptedRun
from moon_jax.errors import OutOfMemory
from moon_jax.errors import UserError
from moon_jax.simulation import checks

_MAX_CHARACTERS = 2000  # characters of a message

_DEFINE = {
    str: flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
}


# The configuration of a command that begins anew, as JSON.
_ANEW = 'MOON_JAX_ANEW'

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def define_config() -> None:
  """Makes a flag of each field of `Config`."""
  for field in dataclasses.fields(Config):
    text, choices = field.metadata['help'], field.metadata['choices']
    if choices:
      flags.DEFINE_enum(field.name, field.default, choices, text)
    else:
      _DEFINE[field.type](field.name, field.default, text)


def start(name: str, run: Callable[[Config], None]) -> None:
  """Reads the flags, checks them, and calls `run` with the configuration.

  Args:
    name: of the command, for its messages.
    run: does it; may raise what `moon_jax.errors` has.
  """
  def main(argv):
    del argv
    cpu_devices.share()
    logging.set_verbosity(logging.WARNING)
    config = {field.name: flags.FLAGS[field.name].value
              for field in dataclasses.fields(Config)}
    config = json.loads(os.environ.pop(_ANEW, 'null')) or config
    try:
      run(checks.validate(Config(**config)))
    except OutOfMemory as error:
      print(f'{name}: {_line(str(error))}', file=sys.stderr)
      if error.fewer_lanes:
        _begin_anew(config, error.fewer_lanes)
      _end_now(2)
    except UserError as error:
      _fail(name, error, 2)
    except DivergedError as error:
      _fail(name, error, 1)
    except InterruptedRun as error:
      print(f'{name}: {error}', file=sys.stderr, flush=True)
      _end_now(128 + error.number)
    except KeyboardInterrupt:
      _fail(name, 'interrupted; the same command goes on from the last '
            'checkpoint, where there is one', 128 + signal.SIGINT)
    except BrokenPipeError:  # whoever read the output has gone
      os._exit(128 + signal.SIGPIPE)
    except Exception as error:
      if isinstance(error, OSError) and error.errno in _DISK:
        _fail(name, f'{error}; once there is room, the same command goes on '
              'from the last checkpoint, where there is one', 1)
      if processes.count() == 1 and type(error).__name__ == 'JaxRuntimeError':
        traceback.print_exc()
        _end_now(1)
      if processes.count() == 1:
        raise
      if processes.is_lost_peer_error(error):
        reason = str(error).strip().partition('\n')[0][:200]
        _fail(name, f'process {processes.index()}: another process of this run '
              f'has ended, or cannot be reached ({reason}). Start all of them '
              'again: they go on from the last checkpoint, where there is one',
              1)
      traceback.print_exc()
      processes.leave(1)

  def parse(argv):
    try:
      rest = flags.FLAGS(argv)
      if len(rest) > 1:
        raise UserError(f'{rest[1]!r} is not a flag; flags start with --')
      return rest
    except SystemExit:
      sys.exit(0)  # --help has been told
    except RecursionError:
      _fail(name, 'a flag is too long, or flag files name one another too '
            'deeply. --help lists the flags and their values', 2)
    except (flags.Error, UserError, OSError, ValueError) as error:
      _fail(name, f'{error}. --help lists the flags and their values', 2)

  app.run(main, flags_parser=parse)


def _begin_anew(config, fewer_lanes):
  """The same command in this process's place: devices may be stuck in it.

  Its flags are told as they were: flag files may have changed since.
  """
  print(f'trying again with {fewer_lanes} lane(s)', file=sys.stderr)
  sys.stdout.flush()
  sys.stderr.flush()
  os.environ[lanes.MAX_LANES_VARIABLE] = str(fewer_lanes)
  os.environ[_ANEW] = json.dumps(config)
  os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _end_now(status):
  """Without Python's own end, which devices at work, or stuck, would stop."""
  sys.stdout.flush()
  sys.stderr.flush()
  if processes.count() > 1:
    processes.leave(status)
  os._exit(status)


def _fail(name: str, why: Exception | str, status: int) -> None:
  print(f'{name}: {_line(str(why))}', file=sys.stderr)
  processes.leave(status)


def _line(text: str) -> str:
  """One line, whatever the values that it repeats have in them."""
  text = ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
  half = _MAX_CHARACTERS // 2
  return text if len(text) <= _MAX_CHARACTERS else (
      f'{text[:half]} ... {text[-half:]}')
