"""All commands under one name: moon-jax COMMAND ..., python -m moon_jax.

`moon-jax train FLAGS` is `python -m moon_jax.train FLAGS`, and so on;
`COMMANDS` lists the modules.
"""

import difflib
import importlib
import sys

from moon_jax import errors
from moon_jax.version import __version__

# Command -> module with `main`, and what it does.
COMMANDS = {
    'train': ('moon_jax.train', 'train one run, or many in few programs'),
    'show': ('moon_jax.results.show',
             'describe a run, compare runs, make pages and figures'),
    'data': ('moon_jax.data_command', 'download, check and list data sets'),
    'doctor': ('moon_jax.doctor.__main__',
               'describe and test this installation'),
}


def main() -> None:
  """Runs the command that the first argument names."""
  errors.escape_output()
  name = sys.argv[1] if len(sys.argv) > 1 else '--help'
  if name == '--version':
    return print(f'moon_jax {__version__}')
  if name in ('-h', '--help'):
    return print(_usage())
  if name not in COMMANDS:
    print(f'moon-jax: {_unknown(name)} The commands are {", ".join(COMMANDS)}; '
          'moon-jax --help describes them', file=sys.stderr)
    sys.exit(2)
  sys.argv[:2] = [f'moon-jax {name}']
  importlib.import_module(COMMANDS[name][0]).main()


def _usage():
  width = max(map(len, COMMANDS))
  lines = [f'  {command:{width}}  {text}'
           for command, (_, text) in COMMANDS.items()]
  return '\n'.join([
      'usage: moon-jax COMMAND ...', '', *lines, '',
      'moon-jax COMMAND --help describes a command, and moon-jax COMMAND -h '
      'its most', 'used flags. moon-jax --version prints the version.', '',
      'Example:', '  moon-jax train --recipe=quickstart'])


def _unknown(name):
  if name.startswith('-'):
    return f'flags follow a command, as in moon-jax train {name}.'
  near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
  return f'there is no command {name!r}' + (
      f'. Did you mean {near[0]}?' if near else '.')


if __name__ == '__main__':
  main()
