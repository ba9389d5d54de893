"""Describes and tests an installation: moon-jax doctor (docs/devices.md)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

OK, FAILED, NOTE = 'ok', 'failed', 'note'


class Finding(NamedTuple):
  """The result of a check."""

  status: str  # OK, FAILED, or NOTE for what is neither
  text: str  # what was found, and after a failure what to do
  values: Mapping[str, Any] = {}  # the same for programs, in JSON types
