"""Command-line interface: one flag per field of `Config`, and exit statuses.

Exit statuses: 0, success; 2, invalid input, with an error message of one or two
lines; 128 plus the signal's number, ended by a signal; 1, any other error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import errno
import os
import pathlib
import re
import signal
import sys
import traceback
from typing import Any
import warnings

from absl import flags, logging

from moon_jax import errors, user_code
from moon_jax.cli import help_page, recipes
from moon_jax.config import Config, FACTS, PARTS, parts, spelling, suggest
from moon_jax.data.io import files
from moon_jax.distributed import host, processes
from moon_jax.errors import (
  DivergedError,
  InterruptedRun,
  OutOfMemory,
  require,
  StageError,
  UserError,
)
from moon_jax.runs import signals

_MAX_CHARACTERS = 2000  # of an error message

_DEFINE_FNS = {
    str: flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
}

# The beginning of a message of Python or absl -> what is required.
_REQUIREMENTS = {
    'invalid literal for int()': 'must be an integer',
    'could not convert string to float': 'must be a number',
    "('Non-boolean argument": 'must be true or false',
}

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def define_config(own: flags.FlagValues = flags.FLAGS) -> None:
  """Defines one flag for each field of `Config`, which checks its choices."""
  for name, facts in FACTS.items():
    default = getattr(Config, name)
    if facts['is_part']:
      default = str(default)
    _DEFINE_FNS[type(default)](name, default, facts['help'], flag_values=own)


def with_parts(words: Sequence[str]) -> list[str]:
  """Returns words with flags such as --algorithm.mu=5 merged into their part.

  Later words replace earlier ones: a call replaces the whole part.

  Raises:
    UserError: if there is no such part, or a word has no value.
  """
  calls: dict[str, parts.Part] = {}
  rest, end = [], [*words, '--'].index('--')
  left = [*words[:end]]
  while left:
    word = left.pop(0)
    match = re.fullmatch(r'--?(\w+)(?:\.(\w+))?(?:=(.*))?', word, re.DOTALL)
    if not match or not match[2] and match[1] not in PARTS:
      rest.append(word)
      continue
    kind, argument, value = match.groups()
    if kind not in PARTS:
      meant = spelling.near(kind, PARTS)
      raise UserError(
          '', f'a flag with a dot must begin with a part of a run, one of '
          f'{", ".join(PARTS)}', word,
          f'Did you mean {word.replace(kind, meant, 1)}?' if meant else '')
    if value is None:  # the next word has it, as absl reads other flags
      if not left:
        raise UserError('', f'{word} needs a value', '', f'Write {word}=VALUE')
      value = left.pop(0)
    calls[kind] = parts.parse(kind, value) if not argument else (
        calls.get(kind, getattr(Config, kind)).replace(
            **{argument: parts.parse_value(value)}))
  return [*(f'--{kind}={call}' for kind, call in calls.items()), *rest,
          *words[end:]]


def settings_of(words: Sequence[str]) -> dict[str, Any]:
  """Returns the settings of a run that words of a command line give, by name.

  Raises:
    UserError: if a word is no flag of a run, or a flag file cannot be read.
  """
  own = flags.FlagValues()
  define_config(own)
  try:
    rest = own(['', *with_parts(_expanded(words))])[1:]
  except (flags.Error, OSError, ValueError, RecursionError) as error:
    raise UserError('', _message(error, own, FACTS)) from error
  require(not rest, '', 'settings must be flags, which start with --',
          *map(repr, rest[:1]))
  return {name: own[name].value for name in FACTS if own[name].present}


def _expanded(words: Sequence[str], parents: tuple[pathlib.Path, ...] = ()
              ) -> list[str]:
  """Returns words with the lines of flag files and recipes for their names.

  `parents` are the flag files in which the words are.
  """
  expanded, rest = [], [*words]
  while rest and rest[0] != '--':
    word = rest.pop(0)
    match = re.fullmatch(r'--?(flagfile|recipe)(?:=(.*))?', word, re.DOTALL)
    if not match:
      expanded.append(word)
      continue
    kind, name = match.groups()
    if name is None:  # the next word has it
      name = rest.pop(0) if rest else ''
    file = (recipes.find(name) if kind == 'recipe'
            else files.user_path(name.strip(), kind))
    require(file not in parents, kind, 'must not include itself, also through '
            'other files', name, 'Remove the line that names it')
    expanded += _expanded(_lines(name, file), (*parents, file))
  return [*expanded, *rest]


def _lines(name: str, file: pathlib.Path) -> list[str]:
  """Returns the lines of a flag file that are words of a command line."""
  require(name.strip(), 'flagfile', 'must name a file of flags', 'none',
          'Write --flagfile=FILE, or remove it')
  try:
    text = file.read_text('utf-8-sig')
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(
        'flagfile', 'must name a text file of flags in UTF-8',
        f'{name}, which cannot be read ({reason})',
        'Correct its path, or save it in UTF-8') from error
  return [*filter(None, map(_line, text.split('\n')))]


def _line(line):
  bare = line.strip()
  if bare.startswith(('#', '//')):
    return ''
  require(not re.fullmatch(r'--?h(elp)?\b.*', bare), '',
          '--help must be on the command line', f'{bare:.200} in a flag file',
          'Remove it from the file')
  flag, _, comment = bare.partition(' #')
  if comment and bare.startswith('-'):
    raise UserError(
        '', 'a comment in a flag file must have a line of its own',
        f'{bare!r:.200}', f'Write {flag.rstrip()} on one line and '
        f'#{comment:.60} on another')
  if match := re.fullmatch(r'(--?[\w.]+)\s+=?\s*([^\s=].*)', bare):
    raise UserError(
        '', 'a line of a flag file must be --FLAG=VALUE, without spaces around '
        '=', f'{bare!r:.200}', f'Write {match[1]}={match[2]:.200}')
  # Values of arguments, --cohort.path='my file', are literals.
  if match := re.fullmatch(r'''(--?\w+)=(["'])((?:(?!\2).)*)\2''', bare):
    raise UserError(
        '', 'a value in a flag file must have no quotes around it, since they '
        'would be part of it', f'{bare:.200}',
        f'Write {match[1]}={match[3]:.200}')
  return bare


def parse(words: Sequence[str]) -> tuple[list[str], frozenset[str]]:
  """Parses the words of a command line.

  Returns the words that are no flags, and the names of the flags on the command
  line itself, without those of flag files.
  """
  rest = flags.FLAGS(['', *with_parts(_expanded(words))])[1:]
  of_absl = flags.FLAGS.flags_by_module_dict().get(logging.__name__, [])
  for flag in of_absl:
    if flag.present:  # a flag of absl for its own log, which is not written
      raise flags.UnrecognizedFlagError(flag.name)
  return rest, named_in(words)


def named_in(words: Sequence[str]) -> frozenset[str]:
  """Returns the names of the flags among words."""
  matches = filter(None, (re.match(r'--?([\w.]+)', word) for word in words))
  return frozenset(name for match in matches for name in (
      match[1], match[1].removeprefix('no')))


def start(name: str,
          run: Callable[[Config, frozenset[str], list[str]], None],
          page: help_page.Page) -> None:
  """Parses the flags, and calls `run` with the configuration.

  Does not return: the process ends with one of the exit statuses above.

  Args:
    name: the module, which begins error messages.
    run: also takes the names of flags on the command line, and the arguments
      that are not flags; may raise the errors of `moon_jax.errors`.
    page: what --help shows besides the flags of a run.
  """
  define_config()
  command = f'python -m {name}'
  if sys.argv[0].startswith('moon-jax '):  # see `moon_jax.__main__`
    name = command = sys.argv[0]
  errors.escape_output()
  user_code.search_current_directory()
  with errors.of_command():
    words, named = _parsed(name, page, command)
    with training(name):
      run(Config(**{field: flags.FLAGS[field].value for field in FACTS}),
          named, words)
  sys.exit()


@contextlib.contextmanager
def training(name: str) -> Iterator[None]:
  """Lets the body train; its errors exit, with `name` in their messages."""
  logging.use_absl_handler()
  logging.set_verbosity(logging.WARNING)
  warnings.formatwarning = lambda message, *_, **__: f'warning: {message}\n'
  with _exiting(name), signals.exiting():
    host.check_environment()
    yield


def _parsed(name, page, command):
  """Returns the result of `parse`; prints help and errors, and then exits."""
  try:
    help_page.answer(sys.argv[1:], page, command)
    return parse(sys.argv[1:])
  except BrokenPipeError:  # the reader of the help has ended
    os._exit(errors.BROKEN_PIPE)
  except RecursionError:
    _fail(name, 'flags must be shorter and flag files less deeply nested, '
          'got a RecursionError. --help lists the flags and their values', 2)
  except (flags.Error, UserError, OSError, ValueError) as error:
    reason = _message(error, flags.FLAGS, help_page.names())
    end = '' if reason.endswith('?') else '.'
    _fail(name, f'{reason}{end} --help lists the flags and their values', 2)


@contextlib.contextmanager
def _exiting(name):
  """Exits with the status of an error that the body raises."""
  try:
    yield
  except OutOfMemory as error:
    print(f'{name}: {_one_line(str(error))}', file=sys.stderr)
    _exit(2)
  except UserError as error:
    _fail(name, error, 2)
  except DivergedError as error:
    _fail(name, error, 1)
  except InterruptedRun as error:
    print(f'{name}: {error}', file=sys.stderr, flush=True)
    _exit(128 + error.number)
  except KeyboardInterrupt:
    _fail(name, 'interrupted; the same command resumes from the last '
          'checkpoint, if there is one', 128 + signal.SIGINT)
  except BrokenPipeError:  # the reader of the output has ended
    os._exit(errors.BROKEN_PIPE)
  except Exception as error:
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
      _fail(name, f'{error}; make the disk writable and free space: the same '
            'command then resumes from the last checkpoint, if there is one',
            1)
    if processes.count() > 1 and processes.is_lost_peer_error(error):
      reason = str(error).strip().partition('\n')[0][:200]
      _fail(name, f'process {processes.index()}: another process of this run '
            f'has ended or cannot be reached ({reason}). Restart all: they '
            'resume from the last checkpoint, if there is one', 1)
    traceback.print_exc()
    _exit(1)


def _exit(status):
  """Ends the process without Python's cleanup, which waits for devices."""
  sys.stdout.flush()
  sys.stderr.flush()
  if processes.count() > 1:
    processes.leave(status)
  os._exit(status)


def _fail(name: str, reason: Exception | str, status: int) -> None:
  lines = str(reason).split('\n', -1 if isinstance(reason, StageError) else 0)
  print(f'{name}: ' + '\n'.join(map(_one_line, lines)), file=sys.stderr)
  processes.leave(status)


def _one_line(text: str) -> str:
  """Escapes line breaks and control characters, and shortens the text."""
  text = ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
  half = _MAX_CHARACTERS // 2
  return text if len(text) <= _MAX_CHARACTERS else (
      f'{text[:half]} ... {text[-half:]}')


def _message(error: Exception, own: flags.FlagValues, names: Iterable[str]
             ) -> str:
  """Returns a message about an error of parsing; flags have these names."""
  if isinstance(error, flags.UnrecognizedFlagError):
    name = error.flagname
    if advice := suggest.advice(name):
      return f'there is no flag --{name}; {advice}'
    _, _, value = error.flagvalue.partition('=')
    near = suggest.flag(name, [*names, *(
        f'no{other}' for other in names
        if other in own and own[other].boolean)])
    return f'there is no flag --{name}' + (
        f'. Did you mean {suggest.with_value(near, value)}?' if near else '')
  text = str(error).removeprefix('flag ').removeprefix('ERROR:: ')
  start, _, reason = text.partition(': ')
  for beginning, requirement in _REQUIREMENTS.items():
    if reason.startswith(beginning):
      name, _, value = start.removeprefix('--').partition('=')
      hint = re.fullmatch(r'[\d.]+', value) and FACTS.get(
          name, {}).get('if_fraction')
      return f'{start}: {requirement}' + f'. {hint}' * bool(hint)
  return text
