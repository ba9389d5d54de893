"""The command line: python -m moon_jax.train --flagfile=FILE [--flag=value].

Every field of `moon_jax.config.Config` is a flag. Exit status: 0 done; 2 a
mistake of the user's, told in a line or two; 1 anything else.
"""

import dataclasses
import sys

from absl import app
from absl import flags
from absl import logging

from moon_jax import checks
from moon_jax import cores
from moon_jax.config import Config
from moon_jax.errors import DivergedError
from moon_jax.errors import UserError

FLAGS = flags.FLAGS

_DEFINE = {
    str: flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
}


def _define_flags() -> None:
  for field in dataclasses.fields(Config):
    text, choices = field.metadata['help'], field.metadata['choices']
    if choices:
      flags.DEFINE_enum(field.name, field.default, choices, text)
    else:
      _DEFINE[field.type](field.name, field.default, text)


def _parse(argv: list[str]) -> list[str]:
  """Reads the flags; a mistake ends with status 2."""
  try:
    rest = FLAGS(argv)
    if len(rest) > 1:
      raise UserError(f'{rest[1]!r} is not a flag; flags start with --')
    return rest
  except SystemExit:
    sys.exit(0)  # --help has been told
  except (flags.Error, UserError, OSError, UnicodeDecodeError) as error:
    _fail(f'{error}. --help lists the flags and their values', 2)


def main(argv: list[str]) -> None:
  """Reads the flags, runs, and prints the outcome."""
  del argv
  cores.share()
  logging.set_verbosity(logging.WARNING)
  fields = dataclasses.fields(Config)
  try:
    config = checks.validate(
        Config(**{field.name: FLAGS[field.name].value for field in fields}))
    from moon_jax import run  # with scikit-learn or pooch, as the data needs

    summary = run.run(config)
  except UserError as error:
    _fail(error, 2)
  except DivergedError as error:
    _fail(error, 1)
  except KeyboardInterrupt:
    _fail('interrupted; the same command goes on from the last checkpoint, '
          'where there is one', 1)
  print(f'test accuracy {summary["test_accuracy"]:.4f} after '
        f'{summary["rounds"]} rounds (best {summary["best_test_accuracy"]:.4f} '
        f'after {summary["best_round"]}), '
        f'{summary["seconds_per_round"]:.2f} s a round')


def _fail(why: Exception | str, status: int) -> None:
  print(f'moon_jax.train: {why}', file=sys.stderr)
  sys.exit(status)


_define_flags()

if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
