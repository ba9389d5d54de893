"""Counts the kernels that a compiled GPU program launches, from its HLO text.

XLA compiles each fusion, library call and copy of a scheduled module to about
one kernel. The row loop is the loop inside the loop over segments
(`moon_jax.engine.segments`). If there are several, it is the one that launches
the most kernels.
"""

from collections import Counter
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
              'copy-done', 'after-all', 'partition-id', 'replica-id', 'call',
              'opt-barrier'}
_NOT_LAUNCHED = ('inner loops', 'conditionals')

_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.\-]+) .*\{$')
_INSTRUCTION = re.compile(
    r'^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\([^)]*\)(.*)')


class Counts(NamedTuple):
  """The kernels and collectives of a module."""

  row: dict[str, int]  # by kind, of one table row: a local step on all lanes
  collectives: dict[str, int]  # in the whole module
  in_loops: dict[str, int]  # collectives that run more than once per round

  def launches(self) -> int:
    """Returns the number of kernels that a row launches."""
    return sum(count for kind, count in self.row.items()
               if kind not in _NOT_LAUNCHED)


class _Instruction(NamedTuple):
  op: str
  rest: str  # attributes, after the operands

  def called(self, attribute: str) -> str:
    """Returns the name of a computation, or ''."""
    match = re.search(rf'\b{attribute}=%?([\w.\-]+)', self.rest)
    return match[1] if match else ''

  def branches(self) -> list[str]:
    """Returns the names of the computations of a conditional."""
    if match := re.search(r'branch_computations=\{([^}]*)\}', self.rest):
      return re.findall(r'%?([\w.\-]+)', match[1])
    return [self.called(f'{which}_computation') for which in ('true', 'false')]


_Module = dict[str, list[_Instruction]]  # computations by name


def count(text: str) -> Counts:
  """Returns the counts of a module, a result of `jax.stages.Compiled.as_text`.

  Raises:
    ValueError: if the module has no loop inside a loop.
  """
  module, entry = _parse(text)
  collectives: Counter[str] = Counter()
  for computation in module.values():
    collectives += _collectives(computation)
  rows = [_kernels(module, row) for segment in _bodies(module, entry)
          for row in _bodies(module, segment)]
  if not rows:
    raise ValueError('the module has no loop inside a loop')
  most = max(rows, key=lambda row: sum(row.values()))
  return Counts(
      {kind: most[kind] for kind in dict.fromkeys((*_KINDS.values(), 'other'))},
      dict(collectives), dict(collectives - _collectives(module[entry])))


def _parse(text: str) -> tuple[_Module, str]:
  """Returns the computations, and the name of the entry computation."""
  module: _Module = {}
  entry, current = '', []
  for line in text.splitlines():
    line = re.sub(r'/\*.*?\*/', '', line)
    if not line.startswith(' '):
      if match := _COMPUTATION.match(line):
        current = module.setdefault(match[1], [])
        entry = match[1] if line.startswith('ENTRY') else entry
    elif match := _INSTRUCTION.match(line):
      current.append(_Instruction(*match.groups()))
  return module, entry


def _collectives(computation) -> Counter[str]:
  ops = (x.op.removesuffix('-start') for x in computation)
  return Counter(op for op in ops if op in _COLLECTIVES)


def _bodies(module: _Module, name: str) -> list[str]:
  """Returns the loop bodies of a computation and of computations it calls."""
  bodies = []
  for x in module[name]:
    if x.op == 'while':
      bodies.append(x.called('body'))
    elif x.op == 'call':
      bodies += _bodies(module, x.called('to_apply'))
    elif x.op == 'conditional':
      for branch in x.branches():
        bodies += _bodies(module, branch)
  return bodies


def _kernels(module: _Module, name: str) -> Counter[str]:
  """Returns the kernels of a computation and of computations it calls.

  Kernels of an inner loop are multiplied by its trip count, or counted once if
  XLA does not know the trip count. Of a conditional, the largest branch counts.
  """
  kernels: Counter[str] = Counter()
  for x in module[name]:
    if x.op == 'call':
      kernels += _kernels(module, x.called('to_apply'))
    elif x.op.endswith('-done') or x.op in _NO_KERNEL:
      continue
    else:
      kernels[_KINDS.get(x.op, 'other')] += 1
    if x.op == 'while':
      trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', x.rest)
      for part in 'condition', 'body':
        for kind, number in _kernels(module, x.called(part)).items():
          kernels[kind] += number * (int(trips[1]) if trips else 1)
    elif x.op == 'conditional':
      kernels += max((_kernels(module, branch) for branch in x.branches()),
                     key=lambda branch: branch.total(), default=Counter())
  return kernels
