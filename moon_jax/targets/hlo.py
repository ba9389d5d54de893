"""Reads a compiled program's HLO text."""

import math
import re
from typing import NamedTuple

_BYTES = {'pred': 1, 'bf16': 2, 'f16': 2, 'u8': 1, 's8': 1, 'u16': 2, 's16': 2,
          'f64': 8, 's64': 8, 'u64': 8}  # others have 4

_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.\-]+) .*\{$')
_INSTRUCTION = re.compile(
    r'^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\(([^)]*)\)(.*)')


class Instruction(NamedTuple):
  """One line of a computation."""

  name: str
  shape: str
  op: str
  operands: tuple[str, ...]
  rest: str  # attributes, after the operands
  is_root: bool


class Module(NamedTuple):
  """A parsed module: its computations, and which of them begins."""

  computations: dict[str, dict[str, Instruction]]
  entry: str


def parse(text: str) -> Module:
  """Parses what `jax.stages.Compiled.as_text` gives."""
  computations, entry, now = {}, '', {}
  for line in text.splitlines():
    line = re.sub(r'/\*.*?\*/', '', line)
    if not line.startswith(' '):
      if found := _COMPUTATION.match(line):
        now = computations.setdefault(found[1], {})
        entry = found[1] if line.startswith('ENTRY') else entry
    elif found := _INSTRUCTION.match(line):
      root, name, shape, op, operands, rest = found.groups()
      now[name] = Instruction(
          name, shape, op, tuple(re.findall(r'%([\w.\-]+)', operands)), rest,
          bool(root))
  return Module(computations, entry)


def called(x: Instruction, attribute: str) -> str:
  """Returns the name that an attribute has, such as a computation; or ''."""
  found = re.search(rf'\b{attribute}=%?([\w.\-]+)', x.rest)
  return found[1] if found else ''


def branches(x: Instruction) -> list[str]:
  """Returns the computations of a conditional."""
  found = re.search(r'branch_computations=\{([^}]*)\}', x.rest)
  if found:
    return re.findall(r'%?([\w.\-]+)', found[1])
  return [called(x, f'{which}_computation') for which in ('true', 'false')]


def arrays(shape: str) -> list[tuple[str, list[int]]]:
  """Returns types and dimensions of a shape, or of a tuple of them."""
  return [(kind, [int(n) for n in dims.split(',') if n])
          for kind, dims in re.findall(r'\b([a-z]\w*)\[([\d,]*)\]', shape)]


def size(shape: str) -> int:
  """Returns the bytes of a shape, or of a tuple of them."""
  return sum(_BYTES.get(kind, 4) * math.prod(dims)
             for kind, dims in arrays(shape))
