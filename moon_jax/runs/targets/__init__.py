"""Descriptions of GPUs: XLA's GpuTargetConfigProto in text format.

Each .txtpb file of this package describes one GPU. XLA crashes, or assumes 0,
if the description lacks a field.
"""

import importlib.metadata
import importlib.util
import pathlib
import re
from typing import NamedTuple

from moon_jax.config import spelling
from moon_jax.errors import UserError

_FOLDER = pathlib.Path(__file__).parent
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
        '', '--target needs the compiler for NVIDIA GPUs (but no GPU), which '
        'is not installed', '',
        f"Install it: pip install 'jax[cuda12]=={version}'")


def names() -> list[str]:
  """Returns the names of the GPUs that this package describes."""
  return sorted(path.stem for path in _FOLDER.glob('*.txtpb'))


def find(name: str) -> Target:
  """Reads the description of a GPU, one of `names()`, or raises UserError."""
  if name not in names():
    raise UserError('', f'--target must be one of {", ".join(names())}', name,
                    spelling.remedy('target', name, names()))
  text = (_FOLDER / f'{name}.txtpb').read_text(encoding='utf-8')
  title = re.findall('device_description_str: *"([^"]*)"', text)[0]
  size = re.findall(r'device_memory_size: *(\d+)', text)[0]
  return Target(title, text, int(size))
