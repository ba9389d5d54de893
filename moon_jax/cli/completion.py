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
from typing import NamedTuple

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


class _Flag(NamedTuple):
  name: str
  takes_value: bool
  values: tuple[str, ...] = ()
  is_path: bool = False


def _help(*words):
  return subprocess.run(
      [sys.executable, '-m', 'moon_jax', *words, '--help'], text=True,
      capture_output=True, check=False,
      env=os.environ | {'COLUMNS': '1000'}).stdout


def _flags(text: str) -> list[_Flag]:
  found = [_Flag('flagfile', True, is_path=True)] * ('--flagfile=' in text)
  for no, name, value in re.findall(
      r'^  (?:-\w[^-\n]*, )?--(\[no\])?([\w-]+)(?:[= ](\S+))?', text, re.M):
    if no:
      found += [_Flag(name, False), _Flag(f'no{name}', False)]
      continue
    choices = re.findall(r'\w+', value) if re.search(r'[|{]', value) else []
    values = NAMES[name][0] if name in NAMES else tuple(choices)
    found.append(_Flag(name, bool(value), values,
                       bool(re.match('DIR|FILE|PATH', value))))
  return found


def _bash(commands, flags):
  values, lists = [], []
  for command in commands:
    names = [f'--{flag.name}{"=" * flag.takes_value}'
             for flag in flags[command]]
    lists.append(f"    {command}) words='{' '.join(names)}' ;;")
    for flag in flags[command]:
      words = 'FILES' if flag.is_path else ' '.join(flag.values)
      if words:
        values.append(f"    {command}--{flag.name}) words='{words}' ;;")
  return _BASH.replace('VALUES', '\n'.join(values)).replace(
      'FLAGS', '\n'.join(lists)).replace('COMMANDS', ' '.join(commands))


def _fish(commands, flags):
  lines = [f"complete -c moon-jax -f -n __fish_use_subcommand -a {command} -d "
           f"'{text}'" for command, text in commands.items()]
  for command in commands:
    start = ("complete -c moon-jax -n '__fish_seen_subcommand_from "
             f"{command}' -l ")
    for flag in flags[command]:
      value = (' -r -F' if flag.is_path else
               f" -x -a '{' '.join(flag.values)}'" if flag.takes_value else '')
      lines.append(f'{start}{flag.name}{value}')
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
