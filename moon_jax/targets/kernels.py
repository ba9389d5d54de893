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

from moon_jax.targets import hlo
from moon_jax.targets import products
from moon_jax.targets.hlo import Module

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
_SLICES = {'dynamic-slice', 'gather', 'slice'}


class Kernel(NamedTuple):
  """The operations and the memory traffic of one kernel."""

  kind: str  # a value of `_KINDS`, or "other"
  flops: dict[str, float]  # of matrix products, by `targets.ARITHMETICS`
  num_bytes: float  # read and written
  times: float = 1.  # launches per row


class Counts(NamedTuple):
  """The kernels and collectives of a module."""

  row: list[Kernel]  # one table row: one local step on all lanes
  collectives: dict[str, int]  # in the whole module
  in_loops: dict[str, int]  # collectives that run more than once per round

  def of_row(self) -> dict[str, int]:
    """Returns the number of kernels of each kind in a row."""
    counts = Counter()
    for kernel in self.row:
      counts[kernel.kind] += kernel.times
    kinds = dict.fromkeys((*_KINDS.values(), 'other'))
    return {kind: int(counts[kind]) for kind in kinds}

  def launches(self) -> int:
    """Returns the number of kernels that a row launches."""
    return int(sum(k.times for k in self.row if k.kind not in _NOT_LAUNCHED))


def count(text: str) -> Counts:
  """Returns the counts of a module.

  Raises:
    ValueError: if the module has no loop inside a loop.
  """
  module = hlo.parse(text)
  collectives = Counter()
  for computation in module.computations.values():
    collectives += _collectives(computation)
  in_loops = collectives - _collectives(module.computations[module.entry])
  rows = [list(_kernels(module, row))
          for segment in _bodies(module, module.entry)
          for row in _bodies(module, segment)]
  if not rows:
    raise ValueError('the module has no loop inside a loop')
  return Counts(max(rows, key=len), dict(collectives), dict(in_loops))


def _collectives(computation) -> Counter[str]:
  ops = (x.op.removesuffix('-start') for x in computation.values())
  return Counter(op for op in ops if op in _COLLECTIVES)


def _bodies(module: Module, name: str) -> list[str]:
  """Returns the loop bodies of a computation and of computations it calls."""
  bodies = []
  for x in module.computations[name].values():
    if x.op == 'while':
      bodies.append(hlo.called(x, 'body'))
    elif x.op == 'call':
      bodies += _bodies(module, hlo.called(x, 'to_apply'))
    elif x.op == 'conditional':
      for branch in hlo.branches(x):
        bodies += _bodies(module, branch)
  return bodies


def _kernels(module: Module, name: str, times: float = 1.) -> Iterator[Kernel]:
  """Yields the kernels of a computation and of computations it calls.

  Kernels of an inner loop are multiplied by its trip count, or counted once if
  XLA does not know the trip count.
  """
  computation = module.computations[name]
  for x in computation.values():
    if x.op == 'call':
      yield from _kernels(module, hlo.called(x, 'to_apply'), times)
    elif x.op.endswith('-done') or x.op in _NO_KERNEL:
      continue
    elif x.op == 'while':
      yield Kernel('inner loops', {}, 0, times)
      trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', x.rest)
      inner_times = times * (int(trips[1]) if trips else 1)
      for part in 'condition', 'body':
        yield from _kernels(module, hlo.called(x, part), inner_times)
    elif x.op == 'conditional':
      yield Kernel('conditionals', {}, 0, times)
      yield from max((list(_kernels(module, branch, times))
                      for branch in hlo.branches(x)), key=len, default=[])
    else:
      fused = (module.computations[hlo.called(x, 'calls')]
               if x.op == 'fusion' else None)
      yield Kernel(_KINDS.get(x.op, 'other'),
                   products.flops(module, computation, x),
                   _num_bytes(computation, x, fused), times)


def _num_bytes(computation, x, fused) -> int:
  """Returns the bytes that a kernel reads and writes.

  An array that is sliced counts only with the slice.
  """
  if fused is None:
    # The last result of a library call is its workspace, which is not counted.
    shape = re.sub(r', [su]8\[\d+\]\{0\}\)$', ')', x.shape)
    return hlo.size(shape) + sum(
        hlo.size(computation[name].shape) for name in x.operands
        if name in computation)
  alias = {}  # name of a bitcast -> name of its operand
  users = {}  # name -> instructions that read it, with the operand's position
  for y in fused.values():
    operands = [alias.get(name, name) for name in y.operands]
    if y.op == 'bitcast' and not y.is_root:
      alias[y.name] = operands[0]
      continue
    for position, name in enumerate(operands):
      users.setdefault(name, []).append((y, position))
  total = 0
  for y in fused.values():
    if y.op == 'parameter':
      total += _bytes_read(y, users.get(y.name, ()))
    if y.is_root:
      parts = y.operands if y.op == 'tuple' else (y.name,)
      total += sum(_bytes_written(fused, alias.get(part, part))
                   for part in parts)
  return total


def _bytes_read(parameter, users):
  sizes = []
  for y, position in users:
    if position == 0 and y.op in _SLICES:
      sizes.append(hlo.size(y.shape))
    elif position == 0 and y.op == 'dynamic-update-slice':
      sizes.append(0)
    else:
      return hlo.size(parameter.shape)
  return min(sum(sizes), hlo.size(parameter.shape))


def _bytes_written(fused, name):
  x = fused[name]
  if x.op == 'bitcast' and x.operands:
    x = fused[x.operands[0]]
  if x.op == 'dynamic-update-slice':
    return hlo.size(fused[x.operands[1]].shape)
  return hlo.size(x.shape)
