"""Suggests flags and values for names that do not exist."""

from collections.abc import Iterable
from collections.abc import Sequence
import difflib
import re

from moon_jax.config import HUGGINGFACE
from moon_jax.config import is_user_code
from moon_jax.config import NAMES
from moon_jax.config import synonyms
from moon_jax.errors import UserError

_MIN_SIMILARITY = 0.7  # ratio of difflib


def flag(name: str, known: Iterable[str]) -> str:
  """Returns the flag that a name means, or '' if that is not clear.

  Args:
    name: a name that is no flag, such as "lr" or "num-rounds".
    known: the names of flags.
  """
  by_letters = {_letters(other): other for other in known}
  if _letters(name) in by_letters:
    return by_letters[_letters(name)]
  name = name.lower().replace('-', '_')
  synonym = synonyms.FLAGS.get(name, '')
  if synonym in by_letters.values() or name in synonyms.ADVICE:
    return synonym
  near = difflib.get_close_matches(
      name, by_letters.values(), n=1, cutoff=_MIN_SIMILARITY)
  return near[0] if near else ''


def advice(name: str) -> str:
  """Returns what to do instead of giving a flag, or ''."""
  return synonyms.ADVICE.get(name.lower().replace('-', '_'), '')


def value(name: str, given: object, choices: Sequence[str]) -> str:
  """Returns a question that suggests a value, such as "; did you mean ...?".

  Args:
    name: of the flag.
    given: an invalid value.
    choices: the valid values.

  Returns:
    The question with the semicolon before it, or '' if no value is similar.
  """
  word = _letters(str(given))
  if name == 'algorithm' and word in synonyms.PAGES:
    return f'; {synonyms.PAGES[word]} has it as a user-defined algorithm'
  by_letters = {_letters(choice): choice for choice in choices}
  by_letters |= synonyms.VALUES.get(name, {})
  near = [letters for letters in by_letters if word == letters]
  near = near or [letters for letters in map(_letters, choices)
                  if len(word) > 2 and letters.startswith(word)]
  near = near or difflib.get_close_matches(
      word, by_letters, n=1, cutoff=_MIN_SIMILARITY)
  found = [by_letters[letters] for letters in near]
  options = [text if text.startswith('--') else f'--{name}={text}'
             for text in found]
  return f'; did you mean {" or ".join(options)}?' if options else ''


def check_names(name: str, given: object) -> None:
  """Checks the value of a flag of `NAMES`.

  Raises:
    UserError: if it is neither a built-in name nor user-defined.
  """
  known, form = NAMES[name]
  is_valid = isinstance(given, str) and (
      given in known or is_user_code(given)
      or name == 'dataset' and given.startswith(HUGGINGFACE))
  if not is_valid:
    raise UserError(f'--{name} must be one of {", ".join(known)}, or '
                    f'user-defined as {form}; got {given!r}'
                    f'{value(name, given, known)}')


def _letters(name):
  """Returns the letters and digits of a name, in lower case."""
  return re.sub(r'[^a-z0-9]', '', name.lower())
