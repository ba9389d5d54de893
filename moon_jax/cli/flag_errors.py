"""Messages about invalid flags, with the flag or the value that is meant."""

from collections.abc import Iterable
from collections.abc import Sequence

from absl import flags

from moon_jax.config import suggest

# The beginning of a message of Python or absl -> what is required.
_REQUIREMENTS = {
    'invalid literal for int()': 'must be an integer',
    'could not convert string to float': 'must be a number',
    "('Non-boolean argument": 'must be true or false',
}


class ChoiceParser(flags.EnumParser):
  """Accepts the choices of a flag, and suggests one for other values."""

  def __init__(self, name: str, choices: Sequence[str]):
    super().__init__(choices)
    self._name = name

  def parse(self, argument: str) -> str:
    """Returns the argument.

    Raises:
      ValueError: if it is none of the choices.
    """
    if argument not in self.enum_values:
      raise ValueError(
          f'must be one of {", ".join(self.enum_values)}'
          f'{suggest.value(self._name, argument, self.enum_values)}')
    return argument


def message(error: Exception, known: Iterable[str],
            switches: Iterable[str]) -> str:
  """Returns a message about an error that parsing flags has raised.

  Args:
    error: the error.
    known: the flags that may be suggested.
    switches: the boolean ones among them.
  """
  if isinstance(error, flags.UnrecognizedFlagError):
    return _unknown(error, [*known, *(f'no{name}' for name in switches)])
  text = str(error).removeprefix('flag ').removeprefix('ERROR:: ')
  start, _, reason = text.partition(': ')
  for beginning, requirement in _REQUIREMENTS.items():
    if reason.startswith(beginning):
      return f'{start}: {requirement}'
  return text


def _unknown(error, known):
  """Returns the message about a flag that does not exist."""
  name = error.flagname.strip()
  _, equals, value = error.flagvalue.partition('=')
  value = value.strip()
  if name in known and name != error.flagname:
    return f'flags must have no spaces around =; write --{name}{equals}{value}'
  if advice := suggest.advice(name):
    return f'there is no flag --{name}; {advice}'
  near = suggest.flag(name, known)
  return f'there is no flag --{name}' + (
      f'; did you mean --{near}{equals}{value}?' if near else '')


def positional(word: str) -> str:
  """Returns a message about an argument that is not a flag."""
  hint = ('write --FLAG or --noFLAG without a value'
          if word.lower() in ('true', 'false', '0', '1', 'yes', 'no')
          else 'write flags as --FLAG=VALUE, without spaces')
  return (f'all arguments must be flags, got the positional argument {word!r}; '
          f'{hint}')
