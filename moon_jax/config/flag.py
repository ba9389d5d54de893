"""Declares one flag as a field of a dataclass."""

from collections.abc import Sequence
import dataclasses
from typing import Any


def flag(default: Any, help_text: str, choices: Sequence[str] | None = None,
         placeholder: str = '', is_common: bool = False) -> Any:
  """Returns a field with its default, its help and what --help shows.

  Args:
    default: the default value.
    help_text: what the flag sets, for --help.
    choices: the valid values, if they are limited.
    placeholder: what --help shows for a value that is empty by default.
    is_common: whether the short help, -h, has the flag.
  """
  return dataclasses.field(default=default, metadata={
      'help': help_text, 'choices': choices, 'placeholder': placeholder,
      'is_common': is_common})
