"""The command that describes and tests an installation: moon-jax doctor.

It prints one line or more per check, and exits with status 1 if one failed.
Each check is isolated: a broken package is reported, and the others go on.
"""

import argparse
import json
from typing import Any

from moon_jax import doctor
from moon_jax.cli import file_command
from moon_jax.doctor import Finding, installation


def _self_test(name: str, *args: Any) -> Finding:
  from moon_jax.doctor import self_test  # imports JAX, which may be broken

  return getattr(self_test, name)(*args)


def checks(data_dir: str) -> list[tuple]:
  """Returns for each check its name, its function and the arguments."""
  trained: list = []
  return [
      ('packages', installation.packages),
      ('GPUs', installation.gpus),
      ('devices', installation.devices),
      ('host', installation.host),
      ('disk', installation.disk),
      ('data sets', installation.data_sets, data_dir),
      ('compilation cache', installation.compilation_cache),
      ('optional packages', installation.optional_packages),
      ('self-test, loss', _self_test, 'check_loss'),
      ('self-test, training', _self_test, 'check_training', trained),
      ('self-test, repetition', _self_test, 'check_repeated', trained),
  ]


def examine(arguments: argparse.Namespace) -> int:
  """Runs all checks and prints what they find; returns the exit status."""
  found = {}
  for name, *check in checks(arguments.data_dir):
    found[name] = doctor.find(*check)
    if not arguments.json:
      print(doctor.lines(name, found[name]), flush=True)
  failed = [name for name, item in found.items()
            if item.status == doctor.FAILED]
  if arguments.json:
    print(json.dumps({
        'ok': not failed, 'failed': failed,
        'checks': {name: item._asdict() for name, item in found.items()},
    }, indent=1))
  else:
    print(f'{len(failed)} of {len(found)} checks failed: {", ".join(failed)}'
          if failed else f'all {len(found)} checks are well')
  return int(bool(failed))


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax doctor', description='Describes this installation of '
      'moon_jax and tests it. Exits with status 1 if a check failed.')
  parser.add_argument('--data_dir', default='', metavar='DIR',
                      help='directory in which to look for data sets')
  parser.add_argument('--json', action='store_true',
                      help='print JSON, for bug reports')
  file_command.start(parser, examine)


if __name__ == '__main__':
  main()
