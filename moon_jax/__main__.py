"""All commands under one name: moon-jax COMMAND ..., python -m moon_jax.

`moon-jax train FLAGS` is `python -m moon_jax.train FLAGS`, and so on.
"""

import importlib
import sys

# Command -> module with `main`, and what it does.
COMMANDS = {
    'train': ('moon_jax.train', 'train and evaluate one run'),
    'sweep': ('moon_jax.sweep.__main__', 'train many runs in few programs'),
    'report': ('moon_jax.report.__main__',
               'make published tables, ours beside theirs'),
    'doctor': ('moon_jax.doctor.__main__',
               'describe and test this installation'),
    'plan': ('moon_jax.plan', 'estimate time and memory of a run'),
}


def main() -> None:
  """Runs the command that the first argument names."""
  name = sys.argv[1] if len(sys.argv) > 1 else ''
  if name not in COMMANDS and name not in ('-h', '--help', ''):
    print(f'moon-jax: the command must be one of {", ".join(COMMANDS)}; got '
          f'{name!r}. moon-jax --help describes them', file=sys.stderr)
    sys.exit(2)
  if name not in COMMANDS:
    width = max(map(len, COMMANDS))
    lines = [f'  {command:{width}}  {text}'
             for command, (_, text) in COMMANDS.items()]
    print('usage: moon-jax COMMAND ...', '', *lines, '',
          'moon-jax COMMAND --help describes a command.', sep='\n')
    sys.exit(0)
  sys.argv[:2] = [f'moon-jax {name}']
  importlib.import_module(COMMANDS[name][0]).main()


if __name__ == '__main__':
  main()
