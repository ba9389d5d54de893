"""The programs and the commands of the documentation's pages."""

import importlib.util
import re
import shlex

from absl import flags
from forked import ROOT

from moon_jax.cli import command_line
from moon_jax.config import Config
from moon_jax.sweep import command, values

DOCS = ROOT / 'docs'


def page(name: str) -> str:
  """Returns the text of a page, for example 'metrics' or 'api/index'."""
  return (DOCS / f'{name}.md').read_text(encoding='utf-8')


def programs(text: str) -> list[str]:
  """Returns the blocks of Python in order."""
  return re.findall(r'^```python\n(.*?)^```', text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
  """Returns the flags of each command that trains, in order."""
  return re.findall(
      r'^(?:python -m moon_jax\.|moon-jax )train (.*)', text, re.MULTILINE)


def config_of(flags_of_command: str, **changes) -> Config:
  """Returns the configuration of a command's flags, with some replaced."""
  own = flags.FlagValues()
  command_line.define_config(own)
  assert own(['train', *shlex.split(flags_of_command)]) == ['train']
  return Config(**{name: own[name].value for name in vars(Config())} | changes)


def sweep_of(words: list[str]) -> command.Named:
  """Returns the named sweep of the words after `python -m moon_jax.sweep`."""
  grids = [word for word, before in zip(words[1:], words) if before == '--grid']
  given = dict(word.removeprefix('--').split('=', 1)
               for word in words if word.startswith('--') and '=' in word)
  path = given.pop('sweep', '')
  given.pop('max_runs', None)
  file = given.pop('flagfile', '')
  of_files = command_line.settings_of_file(file, '') if file else {}
  config = Config(**{
      name: values.TYPES[name](value) for name, value in given.items()})
  return command.build(config, command_line.Given(given, of_files), grids, path)


def execute(program: str, name: str, names: dict | None = None) -> dict:
  """Executes a program of a page and returns its variables."""
  names = {} if names is None else names
  exec(compile(program, name, 'exec'), names)
  return names


def module(path: str):
  """Returns a module of the documentation, for example 'docs/feddyn.py'."""
  file = ROOT / path
  spec = importlib.util.spec_from_file_location(file.stem, file)
  loaded = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(loaded)
  return loaded
