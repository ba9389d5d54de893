"""Measures seconds per round and examples/s, with and without PyTorch's loop.

Both sides run in benchmarks/bench_child.py, so the figures are comparable with
those of benchmarks/bench.py.
"""

import statistics
from typing import Any

from benchmarks import bench
from benchmarks import bench_child


def agreement(task: dict[str, Any]) -> dict[str, Any]:
  """Returns the largest differences of losses and weights between both sides.

  Raises:
    RuntimeError: if a difference is above 1e-5.
  """
  return bench_child.run_task({
      'kind': 'agreement', 'golden': task['golden'], 'device': task['device']})


def pair(task: dict[str, Any]) -> dict[str, Any]:
  """Returns the results of both sides and the median of their paired ratios.

  Their rounds alternate and never run at the same time. The task has "config",
  "num_examples" (of noise, if there is no data set), "cohort_size", "device"
  (PyTorch's) and "repeats".
  """
  children, sides = {}, {}
  try:
    for side in ('ours', 'theirs'):
      children[side] = bench_child.Child(_bench_task(task, side))
      sides[side] = children[side].ready | {'repeats': []}
    for _ in range(task['repeats']):
      for side, child in children.items():
        sides[side]['repeats'].append(child.ask({}))
  finally:
    for child in children.values():
      child.close()
  for measured in sides.values():
    measured['seconds_per_round'] = _seconds(measured['repeats'])
  return bench.compare(sides)


def ours(task: dict[str, Any]) -> dict[str, Any]:
  """Returns the results of moon_jax alone; the task is that of `pair`."""
  child = bench_child.Child(_bench_task(task, 'ours'))
  try:
    repeats = [child.ask({}) for _ in range(task['repeats'])]
  finally:
    child.close()
  return child.ready | {
      'repeats': repeats, 'seconds_per_round': _seconds(repeats),
      'examples_per_second': statistics.median(
          r['num_examples'] / r['seconds'] for r in repeats)}


def rates(task: dict[str, Any]) -> dict[str, Any]:
  """Returns the rates of float32 matrix products and of copies."""
  del task
  return bench_child.run_task({'kind': 'limit'})


def scaling(task: dict[str, Any]) -> dict[str, Any]:
  """Returns one point of the scaling benchmark.

  The task has "config", "num_examples", "cohort_size", "client_size" (examples
  of each client, or None to split all of them) and "repeats".
  """
  config = _with_rounds(task)
  result = bench_child.run_task({
      'kind': 'scaling', 'config': config,
      **{name: task[name] for name in (
          'num_examples', 'cohort_size', 'client_size', 'repeats')}})
  return result | {
      'num_clients': config['num_clients'], 'cohort_size': task['cohort_size'],
      'batch_size': config['batch_size'],
      'seconds_per_round': statistics.median(result['seconds']),
      'peak_gigabytes': result['peak_bytes'] / 1e9}


def _bench_task(task, side):
  return {'kind': side, 'config': _with_rounds(task),
          **{name: task[name] for name in (
              'num_examples', 'cohort_size', 'device')}}


def _with_rounds(task):
  return task['config'] | {
      'num_rounds': bench_child.WARM_UP + task['repeats'],
      'checkpoint_every': 0}


def _seconds(repeats):
  return statistics.median(r['seconds'] for r in repeats)
