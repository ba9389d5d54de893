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
  path = pathlib.Path(target).expanduser()
  if target in names():
    path = _FOLDER / f'{target}.txtpb'
  choices = f'Give one of {", ".join(names())}, or the path of a description'
  if not path.is_file():
    raise UserError(f'--target={target} is neither a known GPU nor a file. '
                    f'{choices}{suggest.value("target", target, names())}')
  try:
    text = path.read_text(encoding='utf-8')
  except (OSError, ValueError) as error:
    raise UserError(f'--target={target} cannot be read as text ({error}). '
                    f'{choices}') from error
  values = dict(re.findall(r'(\w+):\s*([^\s;,{}<>]+)', re.sub('#.*', '', text)))
  missing = [name for name in _REQUIRED_FIELDS
             if not 0 < _number(values.get(name, '0')) < math.inf]
  if missing:
    more = f' and {len(missing) - 3} more' if len(missing) > 3 else ''
    raise UserError(
        f'--target={target} is not a valid GpuTargetConfigProto in text '
        'format: these fields are missing or not positive: '
        f'{", ".join(missing[:3])}{more}. Copy {_FOLDER / "h200.txtpb"} and '
        'change its numbers')
  name = re.search('device_description_str: *"([^"]*)"', text)
  return Target(name[1] if name else target, text,
                int(_number(values['device_memory_size'])))


def _number(text):
  try:
    return float(text)
  except ValueError:
    return 0.
