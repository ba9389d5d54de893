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
    'inspect': ('moon_jax.inspect.__main__',
                'describe a run, finished or running'),
    'compare': ('moon_jax.compare', 'compare runs: settings, curves, results'),
    'plan': ('moon_jax.plan', 'estimate time and memory of a run'),
}


def main() -> None:
  """Runs the command that the first argument names."""
  name = sys.argv[1] if len(sys.argv) > 1 else ''
  if name not in COMMANDS:
    width = max(map(len, COMMANDS))
    lines = [f'  {command:{width}}  {text}'
             for command, (_, text) in COMMANDS.items()]
    print('usage: moon-jax COMMAND ...', '', *lines, '',
          'moon-jax COMMAND --help describes a command.', sep='\n',
          file=sys.stdout if name in ('-h', '--help', '') else sys.stderr)
    sys.exit(0 if name in ('-h', '--help', '') else 2)
  sys.argv[:2] = [f'moon-jax {name}']
  importlib.import_module(COMMANDS[name][0]).main()


if __name__ == '__main__':
  main()
