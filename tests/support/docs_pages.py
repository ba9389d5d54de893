"""The programs and the commands of the documentation's pages."""

import argparse
import importlib.util
import re
import shlex

from moon_jax.cli import command_line, grids
from moon_jax.config import Config
from support import ROOT

DOCS = ROOT / 'docs'


def page(name: str) -> str:
  """Returns the text of a page, for example 'metrics' or 'api/index'."""
  return (DOCS / f'{name}.md').read_text(encoding='utf-8')


def section(name: str, title: str) -> str:
  """Returns a section of a page, with its subsections."""
  start = re.search(rf'^(#+) {re.escape(title)}\n(.*)', page(name),
                    re.DOTALL | re.MULTILINE)
  level, text = start.groups()
  ends = re.finditer(  # code, in which # is a comment, or the next section
      rf'^```.*?^```|^(#{{1,{len(level)}}}) ', text, re.DOTALL | re.MULTILINE)
  return text[:next((end.start() for end in ends if end[1]), len(text))]


def programs(text: str) -> list[str]:
  """Returns the blocks of Python in order."""
  return re.findall(r'^```python\n(.*?)^```', text, re.DOTALL | re.MULTILINE)


def modules(text: str) -> dict[str, str]:
  """Returns the modules that a page tells readers to save, by name."""
  saved = re.findall(r'Save this as\s+`(\w+)\.py`:\n\n```python\n(.*?)^```',
                     text, re.DOTALL | re.MULTILINE)
  copied = re.findall(r'Copy one\s+into `(\w+)\.py`', text)
  return dict(saved) | dict.fromkeys(copied, '\n'.join(programs(text)))


def commands(text: str) -> list[str]:
  """Returns the flags of each command that trains one run, in order."""
  lines = re.findall(
      r'^(?:python -m moon_jax\.|moon-jax )train (.*)', text, re.MULTILINE)
  return [line for line in lines
          if not re.search(r'--grid|--tune|--dry_run|\.toml', line)]


def config_of(flags_of_command: str, **changes) -> Config:
  """Returns the configuration of the flags of a command, with changes."""
  return Config(**command_line.settings_of(shlex.split(flags_of_command))
                | changes)


def sweep_of(words: list[str]) -> grids.Named:
  """Returns the named sweep of the words after `python -m moon_jax.train`."""
  own = argparse.ArgumentParser(allow_abbrev=False)
  own.add_argument('--grid', action='append', default=[])
  own.add_argument('--max_runs')
  own.add_argument('--dry_run', action='store_true')
  own.add_argument('--measure', action='store_true')
  found, rest = own.parse_known_args(words)
  paths = [word for word in rest if word.endswith('.toml')]
  rest = [word for word in rest if word not in paths]
  named = {match[1] for word in rest if (match := re.match(r'--(\w+)', word))}
  return grids.build(
      Config(**command_line.settings_of(rest)), named, found.grid, *paths)


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
