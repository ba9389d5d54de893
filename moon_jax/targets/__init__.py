"""Descriptions of GPUs: XLA's GpuTargetConfigProto in text format.

They are the .txtpb files of this package. A comment line holds the peak
throughput in TFLOP/s, for which the protobuf message has no field:

    # peak_tflops: float32 67, tf32 494.7, bfloat16 989.4
"""

import math
import pathlib
import re
from typing import NamedTuple

from moon_jax.errors import UserError

_FOLDER = pathlib.Path(__file__).parent
ARITHMETICS = ('float32', 'tf32', 'bfloat16')

# A compiler without one of these crashes, or takes the GPU to have none of it.
_FIELDS = (
    'device_memory_size', 'memory_bandwidth', 'l2_cache_size', 'clock_rate_ghz',
    'core_count', 'fpus_per_core', 'threads_per_warp',
    'threads_per_block_limit', 'threads_per_core_limit',
    'registers_per_block_limit', 'registers_per_core_limit',
    'shared_memory_per_block', 'shared_memory_per_block_optin',
    'shared_memory_per_core', 'block_dim_limit_x', 'block_dim_limit_y',
    'block_dim_limit_z', 'major')
_MAX_BYTES = 2**20  # of a description; real ones have a few thousand


class Target(NamedTuple):
  """A GPU as its description has it."""

  name: str
  text: str  # of the description
  memory_bytes: int
  memory_bandwidth: float  # bytes per second
  peak_flops: dict[str, float]  # per second, by a name of `ARITHMETICS`
  has_published_peaks: bool  # False: derived from the float32 units alone


def names() -> list[str]:
  """Returns the GPUs that this package describes."""
  return sorted(path.stem for path in _FOLDER.glob('*.txtpb'))


def find(target: str) -> Target:
  """Reads a description.

  Args:
    target: one of `names()`, or the path of a file.

  Raises:
    UserError: where there is no such name or file, or it is no description.
  """
  path = _FOLDER / f'{target}.txtpb'
  if target not in names():
    path = pathlib.Path(target).expanduser()
  where = f'--target={target}'
  choices = f'Give one of {", ".join(names())}, or the path of a description'
  try:
    if not path.is_file():
      raise UserError(f'{where} is neither a GPU known here nor a file. '
                      f'{choices}')
    if path.stat().st_size > _MAX_BYTES:
      raise UserError(f'{where} has {path.stat().st_size:,} bytes, too many '
                      f'for a description of a GPU. {choices}')
    text = path.read_text(encoding='utf-8')
  except (OSError, ValueError) as error:
    if isinstance(error, UserError):
      raise
    raise UserError(f'{where} cannot be read as text ({error}). {choices}'
                    ) from error
  return _parse(where, text)


def _parse(where, text):
  body = re.sub(r'#.*', '', text)
  found = {name: _number(body, name) for name in _FIELDS}
  missing = [name for name, value in found.items() if not value > 0]
  if missing:
    more = f' and {len(missing) - 3} more' if len(missing) > 3 else ''
    raise UserError(
        f'{where} is not a valid GpuTargetConfigProto in text format: these '
        f'fields are missing or not positive: {", ".join(missing[:3])}{more}. '
        f'Copy {_FOLDER / "h200.txtpb"} and change its numbers')
  quoted = re.search(r'device_description_str:\s*"([^"]*)"', body)
  units = found['core_count'] * found['fpus_per_core']
  float32 = 2e9 * units * found['clock_rate_ghz']  # an FMA is two
  peaks = _peaks(where, text)
  return Target(
      quoted[1] if quoted else where.partition('=')[2], text,
      int(found['device_memory_size']), found['memory_bandwidth'],
      peaks or dict.fromkeys(ARITHMETICS, float32), bool(peaks))


def _number(text, name):
  found = re.search(rf'\b{name}:\s*([\d.eE+]+)', text)
  try:
    value = float(found[1]) if found else 0.
  except ValueError:
    return 0.
  return value if math.isfinite(value) else 0.


def _peaks(where, text):
  """Returns FLOP/s by arithmetic; nothing where the text has no such line."""
  line = re.search(r'^# *peak_tflops:(.*)$', text, re.MULTILINE)
  if not line:
    return {}
  peaks = {name: 1e12 * _number(line[1].replace(name, f'{name}:'), name)
           for name in ARITHMETICS}
  if not all(value > 0 for value in peaks.values()):
    raise UserError(
        f'{where}: its line "{line[0][:80]}" must give a number above 0 for '
        f'each of {", ".join(ARITHMETICS)}, as in "# peak_tflops: float32 67, '
        'tf32 494.7, bfloat16 989.4"; or leave the line out')
  return peaks
