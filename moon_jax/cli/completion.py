"""Prints a script that completes commands, flags and values in a shell.

    eval "$(moon-jax completion bash)"

The script is generated from the help of the commands.
"""

import argparse
from concurrent import futures
import os
import re
import subprocess
import sys

from moon_jax.cli import file_command
from moon_jax.config import NAMES

_BASH = r"""_moon_jax() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  local command=${COMP_WORDS[1]} flag= prefix= words=
  if [[ $word == --*=* ]]; then  # zsh does not split words at =
    flag=${word%%=*} prefix=$flag= word=${word#*=}
  elif [[ $word == = ]]; then
    flag=$before word=
  elif [[ $before == = ]]; then
    flag=${COMP_WORDS[COMP_CWORD-2]}
  fi
  COMPREPLY=()
  case $command$flag in
VALUES
    *--*) return ;;
FLAGS
  esac
  [[ $COMP_CWORD == 1 ]] && words='COMMANDS'
  [[ $COMP_CWORD != 1 && -z $flag && $word != -* ]] && words=FILES
  if [[ $words == FILES && -n $ZSH_VERSION ]]; then
    COMPREPLY=($(compgen -G "$word*"))
  elif [[ $words == FILES ]]; then
    COMPREPLY=($(compgen -f -- "$word"))
    compopt -o filenames 2>/dev/null
  else
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *= ]]; then
      compopt -o nospace 2>/dev/null
    fi
  fi
  COMPREPLY=("${COMPREPLY[@]/#/$prefix}")
}
complete -F _moon_jax moon-jax
"""

_ZSH = 'autoload -U +X compinit bashcompinit && compinit && bashcompinit\n'


def _help(*words):
  return subprocess.run(
      [sys.executable, '-m', 'moon_jax', *words, '--help'], text=True,
      capture_output=True, check=False,
      env=os.environ | {'COLUMNS': '1000'}).stdout


def _flags(text: str) -> list[tuple[str, bool, str]]:
  """Returns of each flag its name, whether it takes a value, and its values.

  FILES stands for those of a path.
  """
  found = [('flagfile', True, 'FILES')] * ('--flagfile=' in text)
  for no, name, value in re.findall(
      r'^  (?:-\w[^-\n]*, )?--(\[no\])?([\w-]+)(?:[= ](\S+))?', text, re.M):
    choices = re.findall(r'\w+', value) if re.search(r'[|{]', value) else ()
    if no:
      found += [(name, False, ''), (f'no{name}', False, '')]
    else:
      found.append((name, bool(value), 'FILES' if re.match(
          'DIR|FILE|PATH', value) else ' '.join(
              NAMES[name][0] if name in NAMES else choices)))
  return found


def _bash(commands, flags):
  values, lists = [], []
  for command in commands:
    names = [f'--{name}{"=" * takes_value}'
             for name, takes_value, _ in flags[command]]
    lists.append(f"    {command}) words='{' '.join(names)}' ;;")
    values += [f"    {command}--{name}) words='{words}' ;;"
               for name, _, words in flags[command] if words]
  return _BASH.replace('VALUES', '\n'.join(values)).replace(
      'FLAGS', '\n'.join(lists)).replace('COMMANDS', ' '.join(commands))


def _fish(commands, flags):
  lines = [f"complete -c moon-jax -f -n __fish_use_subcommand -a {command} -d "
           f"'{text}'" for command, text in commands.items()]
  for command in commands:
    for name, takes_value, words in flags[command]:
      value = (' -r -F' if words == 'FILES' else
               f" -x -a '{words}'" if takes_value else '')
      lines.append("complete -c moon-jax -n '__fish_seen_subcommand_from "
                   f"{command}' -l {name}{value}")
  return '\n'.join(lines) + '\n'


def script(shell: str) -> str:
  """Returns the script for "bash", "zsh" or "fish"."""
  commands = dict(re.findall(r'^  ([\w-]+)  +(.+)$', _help(), re.M))
  with futures.ThreadPoolExecutor() as pool:
    flags = dict(zip(commands, map(_flags, pool.map(_help, commands)),
                     strict=True))
  if shell == 'fish':
    return _fish(commands, flags)
  return _ZSH * (shell == 'zsh') + _bash(commands, flags)


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      'moon-jax completion',
      description='Prints a script that completes commands, flags and values.',
      epilog='bash, zsh: add eval "$(moon-jax completion SHELL)" to ~/.bashrc '
      'or ~/.zshrc; fish: moon-jax completion fish > '
      '~/.config/fish/completions/moon-jax.fish')
  parser.add_argument('shell', choices=['bash', 'zsh', 'fish'])
  file_command.start(
      parser, lambda arguments: print(script(arguments.shell), end=''))


if __name__ == '__main__':
  main()
