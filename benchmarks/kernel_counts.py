"""Counts the kernels that MOON's round launches on a GPU, without a GPU.

python -m benchmarks.kernel_counts --out=DIR [CASE ...]

A case is MODEL:LANES:GPUS, optionally followed by :FLAG=VALUE, such as
resnet18:10:1:model.precision=tf32. Needs the compiler that jax[cuda12]
installs.
Compiles the round of the paper's setting (10 clients, batches of 64, 10 local
epochs, k = 1) for an H200. The compiled program depends only on the shapes of
the data, so the images are noise and no data set is read.

Kernels are counted in the program's HLO text: XLA compiles each fusion, library
call and copy of a scheduled module to about one kernel. The row loop is the
loop inside the loop over segments (`moon_jax.engine.segments`). If there are
several, it is the one that launches the most kernels.
"""

from collections import Counter
from collections.abc import Iterator
import json
import re
from typing import NamedTuple

import jax

from benchmarks import common, sides
from moon_jax.cli import command_line
from moon_jax.config import Config

CASES = (
    'simple_cnn:10:1', 'simple_cnn:8:8', 'resnet18:10:1', 'resnet18:8:8',
    'resnet18:10:1:model.convolution=native',
    'resnet18:10:1:model.precision=tf32x3', 'resnet50:10:1',
    'resnet50:10:1:model.dtype=bfloat16', 'resnet50:8:8')

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


def measure(case: str, num_examples: int) -> dict:
  """Returns the counts of a case as a JSON object."""
  from moon_jax.runs import targets
  from moon_jax.runs.targets import plan
  from moon_jax.simulation import build, round_spec

  model, num_lanes, num_gpus, *changes = case.split(':')
  is_cnn = model == 'simple_cnn'
  config = Config(**command_line.settings_of([
      f'--dataset={"cifar10" if is_cnn else "cifar100"}', '--algorithm=moon',
      f'--model={model}', '--partition=iid', '--local_epochs=10',
      '--batch_size=64', *(f'--{change}' for change in changes)]))
  federation = build.federation(config, sides.noise(
      num_examples, num_classes=10 if is_cnn else 100, augmentation=(
          'reflect_crop_flip' if is_cnn else 'zero_crop_flip_rotate')))
  target = targets.find('h200')
  compiled = plan.compile_round(
      round_spec.make(federation, int(num_lanes), int(num_gpus)),
      plan.mesh(target, int(num_gpus)))
  counts = count(compiled.hlo)
  return {
      'case': case, 'target': target.name,
      'jax': common.versions()['jax'],
      'kernels_per_row': counts.launches(),
      **counts.row, 'collectives': counts.collectives,
      'collectives_in_loops': counts.in_loops,
      'by_cublas': compiled.by_cublas,
      'temporary_bytes': compiled.parts['temporaries of the compiled round'],
      'argument_bytes': sum(compiled.parts[name] for name in (
          'models, client state and table of a round', 'training examples')),
      'compile_seconds': round(compiled.seconds, 1)}


def _name(row):
  model, num_lanes, num_gpus, *changes = row['case'].split(':')
  return f'{model}, {num_lanes} lanes, {num_gpus} GPU(s)' + ''.join(
      f', `--{change}`' for change in changes)


def table(rows: list[dict]) -> str:
  """Returns the counts as a Markdown table."""
  return common.table({
      'case': _name,
      'kernels per row': lambda row: f'{row["kernels_per_row"]:,}',
      'fusions, library calls': lambda row: (
          f'{row["fusions"]:,}, {row["library calls"]}'),
      'copies': lambda row: row['copies'],
      'inner loops, conditionals': lambda row: (
          f'{row["inner loops"]}, {row["conditionals"]}'),
      'collectives': lambda row: ', '.join(
          f'{count} {kind}' for kind, count in row['collectives'].items()
      ) or 'none',
      'temporaries, GB': lambda row: f'{row["temporary_bytes"] / 1e9:.3f}',
  }, rows)


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--num_examples', type=int, default=50_000,
                      help='size of the training set')
  parser.add_argument('cases', nargs='*', default=CASES, metavar='CASE')
  args = parser.parse_args()
  jax.config.update('jax_platforms', 'cpu')  # do not look for a GPU
  rows = []
  for case in args.cases:  # a ResNet takes minutes
    rows.append(measure(case, args.num_examples))
    print(json.dumps(rows[-1]), flush=True)
  common.write(args.out, 'kernel_counts', rows, table(rows))


if __name__ == '__main__':
  main()
