"""Descriptions of GPUs: XLA's GpuTargetConfigProto in text format.

Each .txtpb file of this package describes one GPU.
"""

import importlib.metadata
import importlib.util
import math
import pathlib
import re
from typing import NamedTuple

from moon_jax.config import suggest
from moon_jax.errors import UserError

_FOLDER = pathlib.Path(__file__).parent

# If one of these is missing, XLA crashes or assumes that its value is 0.
_REQUIRED_FIELDS = (
    'device_memory_size', 'memory_bandwidth', 'l2_cache_size', 'clock_rate_ghz',
    'core_count', 'fpus_per_core', 'threads_per_warp',
    'threads_per_block_limit', 'threads_per_core_limit',
    'registers_per_block_limit', 'registers_per_core_limit',
    'shared_memory_per_block', 'shared_memory_per_block_optin',
    'shared_memory_per_core', 'block_dim_limit_x', 'block_dim_limit_y',
    'block_dim_limit_z', 'major')
_PLUGINS = ('jax_cuda12_plugin', 'jax_cuda13_plugin')
_MAX_FILE_BYTES = 2**20  # real descriptions have a few thousand bytes


class Target(NamedTuple):
  """The properties of a GPU, read from its description."""

  name: str
  text: str  # the GpuTargetConfigProto in text format
  memory_bytes: int


def is_installed() -> bool:
  """Returns whether the compiler for NVIDIA GPUs is installed."""
  return any(map(importlib.util.find_spec, _PLUGINS))


def check_installed() -> None:
  """Raises UserError if the compiler for NVIDIA GPUs is not installed."""
  if not is_installed():
    version = importlib.metadata.version('jax')
    raise UserError(
        '--target needs the compiler for NVIDIA GPUs (but no GPU), which is '
        f"not installed; install it: pip install 'jax[cuda12]=={version}'")


def names() -> list[str]:
  """Returns the names of the GPUs that this package describes."""
  return sorted(path.stem for path in _FOLDER.glob('*.txtpb'))


def find(target: str) -> Target:
  """Reads the description of a GPU.

  Args:
    target: one of `names()`, or the path of a file.

  Raises:
    UserError: if there is no such name or file, or if the file is invalid.
  """
  path = _FOLDER / f'{target}.txtpb'
  if target not in names():
    path = pathlib.Path(target).expanduser()
  flag = f'--target={target}'
  choices = f'Give one of {", ".join(names())}, or the path of a description'
  if not path.is_file():
    raise UserError(f'{flag} is neither a known GPU nor a file. {choices}'
                    f'{suggest.value("target", target, names())}')
  if (num_bytes := path.stat().st_size) > _MAX_FILE_BYTES:
    raise UserError(
        f'A GPU description must have at most {_MAX_FILE_BYTES:,} bytes, '
        f'{flag} has {num_bytes:,}. {choices}')
  try:
    text = path.read_text(encoding='utf-8')
  except (OSError, ValueError) as error:
    raise UserError(f'{flag} cannot be read as text ({error}). {choices}'
                    ) from error
  return _parse(flag, text)


def _parse(flag, text):
  without_comments = re.sub(r'#.*', '', text)
  fields = {name: _number(without_comments, name) for name in _REQUIRED_FIELDS}
  missing = [name for name, value in fields.items() if not value > 0]
  if missing:
    more = f' and {len(missing) - 3} more' if len(missing) > 3 else ''
    raise UserError(
        f'{flag} is not a valid GpuTargetConfigProto in text format: these '
        f'fields are missing or not positive: {", ".join(missing[:3])}{more}. '
        f'Copy {_FOLDER / "h200.txtpb"} and change its numbers')
  name = re.search(r'device_description_str:\s*"([^"]*)"', without_comments)
  return Target(name[1] if name else flag.partition('=')[2], text,
                int(fields['device_memory_size']))


def _number(text, name):
  """Returns the value of a field, or 0 if it is missing or invalid."""
  match = re.search(rf'\b{name}:\s*([\d.eE+]+)', text)
  try:
    value = float(match[1]) if match else 0.
  except ValueError:
    return 0.
  return value if math.isfinite(value) else 0.
