"""The scaling part of benchmarks/bench.py: speed over the number of clients."""

from collections.abc import Callable, Sequence
import statistics
from typing import Any

from benchmarks import bench_child

_BATCH_SIZES = (50, 5)  # of the two tables with a fixed total of examples
_CLIENT_SIZE = 50  # examples per client in the third table
_COHORT_SIZE = 100  # clients per round in the third table


def measure(config_fn: Callable[..., dict[str, Any]],
            client_counts: Sequence[int], num_examples: int,
            repeats: int) -> dict[str, list[dict[str, Any]]]:
  """Measures all points of the three tables.

  Args:
    config_fn: returns fields of `Config`, given those that vary.
    client_counts: numbers of clients to measure.
    num_examples: total number of training examples.
    repeats: timed rounds of each point.

  Returns:
    The points of each table, by its title.
  """
  def point(num_clients, cohort_size, batch_size, client_size):
    config = config_fn(
        num_clients=num_clients, batch_size=batch_size, partition='iid')
    return _point(config, cohort_size, client_size, num_examples, repeats)

  counts = sorted(client_counts)
  tables = {}
  for batch_size in _BATCH_SIZES:
    title = f'{num_examples:,} examples in all, batches of {batch_size}'
    tables[title] = [
        point(n, n, batch_size, None)
        for n in counts if num_examples // n >= batch_size]
  title = f'{_CLIENT_SIZE} examples per client, batches of {_CLIENT_SIZE}'
  tables[title] = [
      point(n, min(n, _COHORT_SIZE), _CLIENT_SIZE, _CLIENT_SIZE)
      for n in counts]
  return tables


def _point(config, cohort_size, client_size, num_examples, repeats):
  """Measures one number of clients in a separate process."""
  result = bench_child.run_task({
      'kind': 'scaling', 'num_examples': num_examples,
      'cohort_size': cohort_size, 'client_size': client_size,
      'repeats': repeats, 'config': config})
  result |= {
      'num_clients': config['num_clients'], 'cohort_size': cohort_size,
      'batch_size': config['batch_size'],
      'seconds_per_round': statistics.median(result['seconds']),
      'peak_gigabytes': result['peak_bytes'] / 1e9}
  print(f'{result["num_clients"]:,} clients, {cohort_size:,} per round, '
        f'batches of {result["batch_size"]}: '
        f'{result["examples_per_second"]:,.0f} examples/s, '
        f'{result["seconds_per_round"]:.2f} s per round, '
        f'{result["peak_gigabytes"]:.2f} GB', flush=True)
  return result
