"""Parses the HLO text of a compiled program."""

import math
import re
from typing import NamedTuple

_ITEM_BYTES = {'pred': 1, 'bf16': 2, 'f16': 2, 'u8': 1, 's8': 1, 'u16': 2,
               's16': 2, 'f64': 8, 's64': 8, 'u64': 8}  # all others: 4

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
  """A parsed module: its computations by name, and the entry computation."""

  computations: dict[str, dict[str, Instruction]]
  entry: str


def parse(text: str) -> Module:
  """Parses the result of `jax.stages.Compiled.as_text`."""
  computations, entry, current = {}, '', {}
  for line in text.splitlines():
    line = re.sub(r'/\*.*?\*/', '', line)
    if not line.startswith(' '):
      if match := _COMPUTATION.match(line):
        current = computations.setdefault(match[1], {})
        entry = match[1] if line.startswith('ENTRY') else entry
    elif match := _INSTRUCTION.match(line):
      root, name, shape, op, operands, rest = match.groups()
      current[name] = Instruction(
          name, shape, op, tuple(re.findall(r'%([\w.\-]+)', operands)), rest,
          bool(root))
  return Module(computations, entry)


def called(x: Instruction, attribute: str) -> str:
  """Returns an attribute's value, such as a computation's name, or ''."""
  match = re.search(rf'\b{attribute}=%?([\w.\-]+)', x.rest)
  return match[1] if match else ''


def branches(x: Instruction) -> list[str]:
  """Returns the names of the computations of a conditional."""
  match = re.search(r'branch_computations=\{([^}]*)\}', x.rest)
  if match:
    return re.findall(r'%?([\w.\-]+)', match[1])
  return [called(x, f'{which}_computation') for which in ('true', 'false')]


def arrays(shape: str) -> list[tuple[str, list[int]]]:
  """Returns the type and dimensions of each array in a shape."""
  return [(kind, [int(n) for n in dims.split(',') if n])
          for kind, dims in re.findall(r'\b([a-z]\w*)\[([\d,]*)\]', shape)]


def size(shape: str) -> int:
  """Returns the size of a shape or of a tuple of shapes, in bytes."""
  return sum(_ITEM_BYTES.get(kind, 4) * math.prod(dims)
             for kind, dims in arrays(shape))
