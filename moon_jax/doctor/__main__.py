"""The command that describes and tests an installation: moon-jax doctor.

It prints one line or more per check, and exits with status 1 if one failed.
Each check is isolated: after a broken package the others are tested.
"""

import argparse
import importlib
import json
import textwrap
import time

from moon_jax.cli import file_command
from moon_jax.doctor import FAILED, Finding
from moon_jax.errors import first_line

# Name -> module of this package, which may need a broken one, and function.
CHECKS = {
    'packages': ('installation', 'packages'),
    'GPUs': ('installation', 'gpus'),
    'devices': ('installation', 'devices'),
    'host': ('installation', 'host'),
    'disk': ('installation', 'disk'),
    'self-test, training': ('self_test', 'check_training'),
    'self-test, repetition': ('self_test', 'check_repeated'),
}
_INDENT = 10


def find(module: str, function: str) -> Finding:
  """Returns the finding of a check; an exception is a failed check."""
  start = time.perf_counter()
  try:
    finding = getattr(
        importlib.import_module(f'moon_jax.doctor.{module}'), function)()
  except KeyboardInterrupt:
    raise
  except BaseException as error:  # also SystemExit of a plugin
    finding = Finding(FAILED, first_line(error))
  seconds = round(time.perf_counter() - start, 2)
  return finding._replace(values={**finding.values, 'seconds': seconds})


def examine(arguments: argparse.Namespace) -> int:
  """Runs all checks and prints what they find; returns the exit status."""
  findings = {}
  for name, check in CHECKS.items():
    findings[name] = finding = find(*check)
    if not arguments.json:
      print(textwrap.fill(
          f'{name}: {finding.text}', width=80, break_on_hyphens=False,
          initial_indent=f'  {finding.status:{_INDENT - 2}}',
          subsequent_indent=' ' * _INDENT), flush=True)
  failed = [name for name, item in findings.items() if item.status == FAILED]
  if arguments.json:
    print(json.dumps({
        'ok': not failed, 'failed': failed,
        'checks': {name: item._asdict() for name, item in findings.items()},
    }, indent=1))
  else:
    print(f'{len(failed)} of {len(findings)} checks failed: {", ".join(failed)}'
          if failed else f'all {len(findings)} checks are well')
  return int(bool(failed))


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax doctor', description='Describes this installation of '
      'moon_jax and tests it. Exits with status 1 if a check failed.')
  parser.add_argument('--json', action='store_true',
                      help='print JSON, for bug reports')
  file_command.start(parser, examine)


if __name__ == '__main__':
  main()
