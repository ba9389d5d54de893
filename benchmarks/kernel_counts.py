"""Counts the kernels that MOON's round launches on a GPU, without a GPU.

    python -m benchmarks.kernel_counts [--out=FILE.json] [CASE ...]

A case is MODEL:LANES:GPUS, optionally followed by :FLAG=VALUE, such as
resnet18:10:1:precision=tf32. Needs the compiler that jax[cuda12] installs.
Compiles the round of the paper's setting (10 clients, batches of 64, 10 local
epochs, k = 1) for an H200. The compiled program depends only on the shapes of
the data, so the images are noise and no data set is read.
"""

import argparse
import json
import os
import pathlib

from benchmarks import common, hlo_kernels, sides
from moon_jax.config import Config

CASES = (
    'simple_cnn:10:1', 'simple_cnn:8:8', 'resnet18:10:1', 'resnet18:8:8',
    'resnet18:10:1:convolution=native', 'resnet18:10:1:precision=tf32x3',
    'resnet50:10:1', 'resnet50:10:1:dtype=bfloat16', 'resnet50:8:8')


def measure(case: str, num_examples: int) -> dict:
  """Returns the counts of a case as a JSON object."""
  from moon_jax import targets
  from moon_jax.simulation import build, round_spec
  from moon_jax.targets import plan

  model, num_lanes, num_gpus, *changes = case.split(':')
  is_cnn = model == 'simple_cnn'
  config = Config(
      dataset='cifar10' if is_cnn else 'cifar100', algorithm='moon',
      model=model, partition='iid', local_epochs=10, batch_size=64,
      **dict(change.split('=') for change in changes))
  federation = build.federation(config, sides.noise(
      num_examples, num_classes=10 if is_cnn else 100, augmentation=(
          'reflect_crop_flip' if is_cnn else 'zero_crop_flip_rotate')))
  target = targets.find('h200')
  compiled = plan.compile_round(
      round_spec.make(federation, int(num_lanes), int(num_gpus)),
      plan.mesh(target, int(num_gpus)))
  counts = hlo_kernels.count(compiled.hlo)
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
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--out', help='JSON file for the counts')
  parser.add_argument('--num_examples', type=int, default=50_000,
                      help='size of the training set')
  parser.add_argument('cases', nargs='*', default=CASES, metavar='CASE')
  args = parser.parse_args()
  os.environ['JAX_PLATFORMS'] = 'cpu'
  rows = []
  for case in args.cases:
    rows.append(measure(case, args.num_examples))
    print(json.dumps(rows[-1]), flush=True)
    if args.out:  # after each case, because a ResNet takes minutes
      pathlib.Path(args.out).write_text(json.dumps(rows, indent=1) + '\n')
  print(table(rows))


if __name__ == '__main__':
  main()
