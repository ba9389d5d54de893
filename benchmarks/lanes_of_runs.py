"""Compares numbers of lanes for the runs of a sweep on a GPU, without a GPU.

    python benchmarks/lanes_of_runs.py [--out=FILE.json] [CASE ...]

A case is MODEL:RUNS:GROUPS, optionally followed by :FLAG=VALUE. GROUPS of the
runs train side by side, each on its 10 lanes, and the others after them. Prints
the kernels, the memory and the estimated time of a row for an H200. Needs the
compiler that jax[cuda12] installs. The setting is that of kernel_counts.py.
"""

import argparse
import json
import os
import pathlib
import sys
from unittest import mock

ROOT = pathlib.Path(__file__).parents[1]
CASES = (
    'simple_cnn:1:1', 'simple_cnn:12:1', 'simple_cnn:12:2', 'simple_cnn:12:3',
    'simple_cnn:12:6', 'simple_cnn:12:12', 'simple_cnn:24:24', 'resnet18:1:1',
    'resnet18:12:1', 'resnet18:12:2', 'resnet18:12:4')
_NUM_EXAMPLES = 12_800


def measure(case: str) -> dict:
  """Returns the figures of a case as a JSON object."""
  from benchmarks import kernel_counts
  from moon_jax import targets
  from moon_jax.engine import lanes
  from moon_jax.sweep import target_plan
  from moon_jax.targets import deviceless

  model, num_runs, groups, *changes = case.split(':')
  flags = dict(change.split('=') for change in changes)
  configs = [kernel_counts.config_of(model, seed=seed, mu=1., **flags)
             for seed in range(int(num_runs))]
  specs, = target_plan.groups(
      configs, 1, kernel_counts.dataset_of(model, _NUM_EXAMPLES))
  target = targets.find('h200')
  mesh = deviceless.mesh(target, 1)
  num_lanes = specs[0].layout.num_lanes * int(groups)
  with mock.patch.object(
      lanes, 'choose_for_runs', lambda *args: (num_lanes, 1)):
    found = target_plan.together(
        specs, 1, target, lambda spec, _, largest, count: (
            deviceless.compile_round(spec, mesh, largest, count)))
  row = 1e6 / found.estimate.rows
  return {
      'case': case, 'lanes': found.num_lanes,
      'kernels_per_row': found.counts.launches(), **found.counts.of_row(),
      'row_us': found.estimate.seconds * row,
      'row_us_of_launches': found.estimate.launch_seconds * row,
      'row_us_of_products': found.estimate.product_seconds * row,
      'row_us_of_memory': found.estimate.memory_seconds * row,
      'row_us_per_lane': found.estimate.seconds * row / found.num_lanes,
      'row_bytes': found.estimate.row_bytes,
      'argument_bytes': sum(found.compiled.argument_bytes.values()),
      'temporary_bytes': found.compiled.temporary_bytes,
      'compile_seconds': round(found.compiled.seconds, 1)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--out', help='JSON file for the figures')
  parser.add_argument('cases', nargs='*', default=CASES, metavar='CASE')
  args = parser.parse_args()
  os.environ['JAX_PLATFORMS'] = 'cpu'
  rows = []
  for case in args.cases:
    rows.append(measure(case))
    print(json.dumps(rows[-1]), flush=True)
    if args.out:  # after each case, because a ResNet takes minutes
      pathlib.Path(args.out).write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
  sys.path.insert(0, str(ROOT))
  main()
