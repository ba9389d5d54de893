"""Reads the words of a command line, and the flag files among them."""

from collections.abc import Sequence
import re

from absl import flags

_MARK = '\ufeff'  # byte-order mark, with which some editors begin a file


def names(words: Sequence[str]) -> set[str]:
  """Returns the flags that are named on a command line."""
  found = [re.match(r'--?(\w+)', word) for word in words]
  return {name for match in found if match
          for name in (match[1], match[1].removeprefix('no'))}


def flag_files(words: Sequence[str]) -> list[str]:
  """Returns the words of a command line that name flag files."""
  return [word for i, word in enumerate(words)
          if re.match(r'--?flagfile\b', word)
          or i and re.fullmatch(r'--?flagfile', words[i - 1])]


def expanded(words: Sequence[str], own: flags.FlagValues | None = None
             ) -> list[str]:
  """Returns the words with the lines of flag files in place of their names.

  Args:
    words: of the command line.
    own: the flags that are defined; None for those of the command line.

  Raises:
    absl.flags.Error: if a flag file cannot be opened.
  """
  lines = []
  own = flags.FLAGS if own is None else own
  for word in own.read_flags_from_files(words, force_gnu=False):
    line = word.removeprefix(_MARK)
    is_comment = not line or line.isspace() or line.startswith(('#', '//'))
    if line == word or not is_comment:  # absl has removed other comments
      lines.append(line)
  return lines
