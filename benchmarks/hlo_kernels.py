"""Counts the kernels that a compiled GPU program launches, from its HLO text.

XLA compiles each fusion, library call and copy of a scheduled module to about
one kernel. The row loop is the loop inside the loop over segments
(`moon_jax.engine.segments`). If there are several, it is the one that launches
the most kernels.
"""

from collections import Counter
from collections.abc import Iterator
import re
from typing import NamedTuple

_COLLECTIVES = ('all-reduce', 'all-gather', 'all-to-all', 'reduce-scatter',
                'collective-permute', 'collective-broadcast',
                'ragged-all-to-all')
# The kind of each operation. Operations in neither table are "other".
_KINDS = {'fusion': 'fusions', 'custom-call': 'library calls',
          'convolution': 'library calls', 'dot': 'library calls',
          'copy': 'copies', 'copy-start': 'copies', 'while': 'inner loops',
          'conditional': 'conditionals'}
_NO_KERNEL = {'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast',
              'after-all', 'partition-id', 'replica-id', 'opt-barrier'}
_NOT_LAUNCHED = ('inner loops', 'conditionals')

_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.\-]+) .*\{$')
_INSTRUCTION = re.compile(
    r'^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\([^)]*\)(.*)')

# Computations by name, as (operation, attributes).
_Module = dict[str, list[tuple[str, str]]]


class Counts(NamedTuple):
  """The kernels and collectives of a module."""

  row: dict[str, int]  # by kind, of one table row: a local step on all lanes
  collectives: dict[str, int]  # in the whole module
  in_loops: dict[str, int]  # collectives that run more than once per round

  def launches(self) -> int:
    """Returns the number of kernels that a row launches."""
    return sum(count for kind, count in self.row.items()
               if kind not in _NOT_LAUNCHED)


def count(text: str) -> Counts:
  """Returns the counts of a module, a result of `jax.stages.Compiled.as_text`.

  Raises:
    ValueError: if the module has no loop inside a loop.
  """
  module: _Module = {}
  entry, current = '', []
  for line in re.sub(r'/\*.*?\*/', '', text).splitlines():
    if match := _COMPUTATION.match(line):
      current = module.setdefault(match[1], [])
      entry = match[1] if line.startswith('ENTRY') else entry
    elif match := _INSTRUCTION.match(line):
      current.append((match[1], match[2]))
  rows = [_kernels(module, row) for segment in _bodies(module, entry)
          for row in _bodies(module, segment)]
  if not rows:
    raise ValueError('the module has no loop inside a loop')
  most = max(rows, key=lambda row: row.total())
  collectives = sum(map(_collectives, module.values()), Counter())
  return Counts(
      {kind: most[kind] for kind in dict.fromkeys((*_KINDS.values(), 'other'))},
      dict(collectives), dict(collectives - _collectives(module[entry])))


def _collectives(computation) -> Counter[str]:
  ops = (op.removesuffix('-start') for op, _ in computation)
  return Counter(op for op in ops if op in _COLLECTIVES)


def _called(attributes: str, role: str) -> str:
  """Returns the name of the computation that an operation has in a role."""
  match = re.search(rf'\b{role}=%?([\w.\-]+)', attributes)
  return match[1] if match else ''


def _operations(module: _Module, name: str) -> Iterator[tuple[str, str]]:
  """Yields the operations of a computation and of computations it calls."""
  for op, attributes in module[name]:
    if op == 'call':
      yield from _operations(module, _called(attributes, 'to_apply'))
    else:
      yield op, attributes


def _bodies(module: _Module, name: str) -> list[str]:
  return [_called(attributes, 'body')
          for op, attributes in _operations(module, name) if op == 'while']


def _kernels(module: _Module, name: str) -> Counter[str]:
  """Returns the kernels of a computation and of computations it calls.

  Kernels of an inner loop are multiplied by its trip count, or counted once if
  XLA does not know the trip count. Those of a conditional are not counted.
  """
  kernels: Counter[str] = Counter()
  for op, attributes in _operations(module, name):
    if not op.endswith('-done') and op not in _NO_KERNEL:
      kernels[_KINDS.get(op, 'other')] += 1
    if op == 'while':
      trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', attributes)
      for role in 'condition', 'body':
        inner = _kernels(module, _called(attributes, role))
        for kind, number in inner.items():
          kernels[kind] += number * (int(trips[1]) if trips else 1)
  return kernels
