"""Describes an installation and tests it: moon-jax doctor (docs/doctor.md)."""

from collections.abc import Callable, Mapping
import textwrap
import time
from typing import Any, NamedTuple

_WIDTH = 80
_INDENT = 10
OK, FAILED, NOTE = 'ok', 'failed', 'note'


class Finding(NamedTuple):
  """The result of a check.

  Attributes:
    status: OK, FAILED, or NOTE for what is neither.
    text: what was found, and after a failure what to do.
    values: the same for programs, in JSON types.
  """

  status: str
  text: str
  values: Mapping[str, Any] = {}


def find(check: Callable[..., Finding], *args: Any) -> Finding:
  """Returns the finding of a check; an exception is a failed check.

  What is examined may be broken in any way, and one broken part must not hide
  the others.
  """
  start = time.perf_counter()
  try:
    finding = check(*args)
  except KeyboardInterrupt:
    raise
  except BaseException as error:  # also SystemExit of a plugin
    lines = str(error).strip().splitlines()[:1] or ['']
    finding = Finding(FAILED, f'{type(error).__name__}: {lines[0][:300]}')
  seconds = round(time.perf_counter() - start, 2)
  return finding._replace(values={**finding.values, 'seconds': seconds})


def lines(name: str, finding: Finding) -> str:
  """Returns a finding as text of at most 80 columns."""
  return textwrap.fill(
      f'{name}: {finding.text}', _WIDTH,
      initial_indent=f'  {finding.status:{_INDENT - 2}}',
      subsequent_indent=' ' * _INDENT, break_on_hyphens=False)
