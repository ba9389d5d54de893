"""The text of --help and -h, from the flags."""

from collections.abc import Mapping, Sequence
import re
import shutil
import sys
import textwrap
from typing import Any, NamedTuple

from absl import flags

from moon_jax.cli import recipes
from moon_jax.config import (
  Config,
  FACTS,
  KINDS,
  Part,
  PARTS,
  parts,
  spelling,
  TOPICS,
)
from moon_jax.errors import UserError

_MIN_WIDTH = 50

# What the heads of flags mean.
_LEGEND = (
    'Flags are shown with their defaults. Of values separated by |, the first '
    'is the default and the others are the choices. Capitals stand for a value '
    'that is empty by default. --[no]FLAG is --FLAG (on) or --noFLAG (off). '
    '--flagfile=FILE reads flags from a file, one per line, and --recipe=NAME '
    'from one of the package; flags after it replace those of the file.')


class Page(NamedTuple):
  """What the help of a command has besides the flags of a run."""

  summary: str  # what the command does
  examples: Sequence[tuple[str, str]]  # (comment, arguments) that work
  topic: str  # the title of the flags that only this command has
  placeholders: Mapping[str, str] = {}  # for values of these flags, by name
  usage: str = '[--FLAG=VALUE ...]'  # after the command


def answer(words: Sequence[str], page: Page, command: str) -> None:
  """Prints the help and exits, if a command line has --help or -h.

  A word after --help, such as algorithm or algorithm.moon, names a part.

  Raises:
    UserError: if there is no such part.
  """
  asked = [word for word in words if re.fullmatch(
      r'--?(h|help|helpfull|\?)(=.*)?', word)]
  if asked:
    _, _, name = asked[0].partition('=')
    rest = words[words.index(asked[0]) + 1:]
    if name or rest and re.fullmatch(r'\w+([.=].+)?', rest[0]):
      width = shutil.get_terminal_size().columns
      print(show_part(name or rest[0], max(width, _MIN_WIDTH)), flush=True)
      sys.exit()
    print(show(page, command, not asked[0].endswith('-h'),
               shutil.get_terminal_size().columns), flush=True)
    sys.exit()


def show(page: Page, command: str, is_full: bool, width: int) -> str:
  """Returns the help of a command, whose flags are defined.

  `command` is how users call it, such as "moon-jax train". Without `is_full` it
  has the most used flags only. Lines have at most `width` characters; heads of
  flags may be longer.
  """
  width = max(width, _MIN_WIDTH)
  topics = _topics(page, is_full)
  lines = [f'usage: {command} {page.usage}', '', *_wrap(page.summary, width),
           '', *_wrap(_LEGEND, width)]
  for title, entries in topics.items():
    lines += ['', f'{title}:', *_table(entries, width)]
  lines += ['', 'Examples:']
  for comment, arguments in page.examples:
    lines += [*_wrap(f'# {comment}', width, '  ', '  # '),
              f'  {command} {arguments}']
  lines += ['', *_wrap(
      'docs/flags.md describes the flags at length. --help algorithm lists the '
      'functions of a part, --help algorithm.moon the arguments of one, and '
      '--help recipe the recipes.'
      if is_full else
      f'{command} --help lists all {len(FACTS)} flags of a run and what they '
      'do.', width)]
  return '\n'.join(lines)


# Settings that may be calls, and are no parts of a run.
_WITH_CALLS = 'dataset', 'tune'


def show_part(name: str, width: int) -> str:
  """Returns the help of a kind, such as algorithm, or of algorithm.moon.

  The latter may be written as algorithm=moon(mu=5), too.
  """
  kind, _, function = re.sub(r'^(\w+)=', r'\1.', name).partition('.')
  function, _, _ = function.partition('(')  # of a call
  if kind == 'recipe':
    return '\n'.join(['--recipe=NAME reads one of these flag files:', '',
                      *_table(recipes.describe().items(), width)])
  kinds = *PARTS, *_WITH_CALLS
  if kind not in kinds:
    near = spelling.near(kind, kinds)
    meant = [f'{other}.{kind}' for other in kinds
             if kind in KINDS[other].functions]
    if near:
      meant = [name.replace(kind, near, 1)]
    raise UserError(
        '', '--help must be followed by a part or one of its functions, as in '
        f'--help algorithm.moon; parts are {", ".join(kinds)}', name,
        f'Did you mean --help {" or --help ".join(meant)}?' if meant else '')
  if not function:
    text = FACTS[kind]['help'] if kind in FACTS else flags.FLAGS[kind].help
    entries = [(name, parts.describe(kind, name)[0])
               for name in KINDS[kind].functions]
    return '\n'.join([
        *_wrap(f'--{kind}: {" ".join(text.split())}', width), '',
        *_table(entries, width), '', *_wrap(
            f'--help {kind}.NAME lists the arguments of NAME. '
            + _own_function(kind), width)])
  summary, arguments = parts.describe(kind, function)
  entries = [(f'{entry.name}={entry.default or "VALUE"}', entry.help + (
      f' ({entry.limits})' if entry.limits else '')) for entry in arguments]
  return '\n'.join([
      *_wrap(f'--{kind}={function}: {summary}', width), '',
      *(_table(entries, width) or ['  It has no arguments.']), '', *_wrap(
          f"Give --{kind}='{function}(NAME=VALUE, ...)'" + (
              f', or --{kind}={function} --{kind}.NAME=VALUE' * (kind in PARTS)
          ) + '.', width)])


def _own_function(kind):
  """Returns what your own function of a kind is, gets and returns."""
  known = KINDS[kind]
  if not known.returns:
    return ''
  page = FACTS[kind]['page'] if kind in PARTS else 'sweeps.md'
  values = (' Values of the run, for parameters annotated with '
            f'moon_jax.FromRun[...]: {", ".join(known.values)}.'
            if known.values else '')
  return ('Your own function is MODULE:FUNCTION, as in '
          f"--{kind}='mymodule:{kind}(argument=1)', and returns "
          f'{known.returns}.{values} See docs/{page or "parts.md"}.')


def _topics(page, is_full):
  """Returns for each topic (head, text) of its flags."""
  entries = {
      name: _entry(name, getattr(Config, name), facts['help'],
                   facts['choices'], facts['placeholder'], is_full)
      for name, facts in FACTS.items() if is_full or facts['is_common']}
  if not is_full:
    return {'Most used flags': [*entries.values()]}
  return {title: [entries[name] for name in names]
          for title, names in TOPICS.items()} | {
              # absl adds to the help that a flag may be repeated.
              page.topic: [_entry(
                  name, flags.FLAGS[name].default,
                  flags.FLAGS[name].help.partition(';\n')[0], None,
                  page.placeholders.get(name, '')) for name in _own_names()]}


def names() -> list[str]:
  """Returns the flags that --help mentions."""
  return [*FACTS, *_own_names(), 'flagfile', 'help']


def _own_names():
  """Returns the flags that only this command has, in order of definition."""
  return [name for name, flag in flags.FLAGS._flags().items()
          if name == flag.name and name not in FACTS
          and not flags.FLAGS.find_module_defining_flag(name).startswith(
              ('absl', 'orbax'))]


def _entry(name: str, default: Any, text: str, choices: Sequence[str] | None,
           placeholder: str, is_full: bool = True) -> tuple[str, str]:
  """Returns (head, text) of a flag; the first sentence if not `is_full`."""
  text = ' '.join(text.split())
  if not is_full:
    text = re.split(r'(?<=\.) |; or your own', text)[0].rstrip('.') + '.'
  if isinstance(default, bool):
    return f'--[no]{name}', f'{text} Default: {"on" if default else "off"}.'
  if isinstance(default, Part):
    return f'--{name}={default}', text
  if choices:
    value = '|'.join([default, *(x for x in choices if x != default)])
  elif default in ('', [], None):
    value = placeholder or 'VALUE'
  else:
    value = parts.show(default)
  return f'--{name}={value}', text


def _table(entries, width):
  column = 26 if width < 100 else 34
  lines = []
  for head, text in entries:
    body = _wrap(text, width, ' ' * column) or ['']
    if len(head) + 4 <= column:
      body[0] = (f'  {head}'.ljust(column) + body[0].lstrip()).rstrip()
    else:
      lines.append(f'  {head}')
    lines += body
  return lines


def _wrap(text, width, indent='', next_indent=None):
  return textwrap.wrap(
      text, width, initial_indent=indent, break_on_hyphens=False,
      subsequent_indent=indent if next_indent is None else next_indent)
