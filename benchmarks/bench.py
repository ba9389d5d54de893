"""Measures speed: against a plain PyTorch loop, and over numbers of clients.

python -m benchmarks.bench --data_dir=DIR --out=experiments/results/bench_cpu

recipe   The paper's CIFAR-10 setting (10 clients, Dirichlet 0.5, the split of
         seed 0, batches of 64), FedAvg and MOON (mu 5, k 1), with and without
         augmentation. moon_jax and PyTorch run in separate processes. After two
         warm-up rounds their rounds alternate and never run at the same time.
         First, losses and weights of both must agree to 1e-5
         (benchmarks/bench_agreement.py). The results include the limits of the
         hardware (benchmarks/bench_limit.py). Needs PyTorch: pip install
         '.[bench]'.
scaling  moon_jax alone, in three tables, because examples per second are
         comparable only at the same batch size. Two tables split all examples
         iid over the clients, which all take part in each round: in batches of
         50, up to the number of clients that still have a full batch, and in
         batches of 5, for ten times as many clients. In the third table each
         client draws 50 examples with replacement, and 100 clients take part in
         each round. Each point runs in a separate process. The exit status is 1
         if a round after the first one compiled.

Takes tens of minutes on two CPU cores; --num_clients_timed, --case, --repeats
and --client_counts shorten it. Without --data_dir the images are noise with the
shape of CIFAR-10's.
"""

from collections.abc import Sequence
import functools
import json
import pathlib
import statistics
import sys

from absl import app, flags

from benchmarks import (
  bench_child,
  bench_environment,
  bench_limit,
  bench_report,
  bench_scaling,
  golden_dir,
)
from moon_jax.config import Config

FLAGS = flags.FLAGS

_CIFAR10_SIZE = 50_000  # training examples
_CASES = {  # algorithm, whether images are augmented
    'fedavg': ('fedavg', False),
    'moon': ('moon', False),
    'fedavg, augmented': ('fedavg', True),
    'moon, augmented': ('moon', True),
}
_SIDES = ('ours', 'theirs', 'processes')


def define_flags() -> None:
  """Defines the flags. Not on import: moon_jax.train has flags of these names.
  """
  flags.DEFINE_string(
      'data_dir', '', 'Directory that contains CIFAR-10; empty uses noise.')
  flags.DEFINE_integer(
      'num_examples', _CIFAR10_SIZE, 'Number of noise examples.',
      lower_bound=400)
  flags.DEFINE_string(
      'out', None, 'Output directory.', required=True)
  flags.DEFINE_enum(
      'part', 'all', ('recipe', 'scaling', 'all'), 'What to measure.')
  flags.DEFINE_integer(
      'repeats', 5, 'Timed rounds after the two warm-up rounds.', lower_bound=1)
  flags.DEFINE_integer(
      'local_epochs', 1, 'Local epochs per round.', lower_bound=1)
  flags.DEFINE_multi_enum(
      'case', list(_CASES), list(_CASES),
      'Case of the recipe part; may be repeated. Default: all.')
  flags.DEFINE_multi_enum(
      'side', list(_SIDES), _SIDES,
      'moon_jax (ours), PyTorch with one thread per core (theirs), or PyTorch '
      'with one process per core (processes, CPUs only); may be repeated. '
      'Default: all.')
  flags.DEFINE_integer(
      'num_clients_timed', 10, 'Number of the 10 clients that train in the '
      'recipe part; fewer for a quick run.', 1, 10)
  flags.DEFINE_enum(
      'device', 'cpu', ('cpu', 'cuda'),
      "PyTorch's device; JAX uses its default device.")
  flags.DEFINE_integer(
      'lanes', 0, 'Clients that moon_jax trains side by side; 0 chooses.',
      lower_bound=0)
  flags.DEFINE_string(
      'golden', None, 'simple_cnn.npz of the golden vectors; its images are '
      'used to compare both sides. Default: the file in $MOON_JAX_GOLDEN, '
      '../shared/golden or tests/golden.')
  flags.DEFINE_list(
      'client_counts', '10,100,1000,10000',
      'Numbers of clients in the scaling part.')
  flags.DEFINE_enum(
      'algorithm', 'moon', ('fedavg', 'moon'), 'Algorithm of the scaling part.')


def run_recipe() -> dict:
  """Measures the cases and returns their results and the environment."""
  results = bench_environment.describe()
  if 'ours' in FLAGS.side and len(FLAGS.side) > 1:
    results['differences'] = bench_child.run_task({
        'kind': 'agreement', 'golden': _golden(), 'device': FLAGS.device})
    print(f'both sides agree: {results["differences"]}', flush=True)
  if 'ours' in FLAGS.side:
    results['rates'] = bench_child.run_task({'kind': 'limit'})
  results['cases'] = {}
  for name in FLAGS.case:
    case = _case(*_CASES[name])
    if 'rates' in results:
      case |= limit(_CASES[name][0], case, results['rates'])
    results['cases'][name] = case
    print(f'{name}: ' + ', '.join(
        f'{side} {case[side]["examples_per_second"]:,.0f} examples/s'
        for side in FLAGS.side), flush=True)
  return results


def _case(algorithm, augment):
  """Measures one case; the sides take turns."""
  task = {
      'config': _config(algorithm, num_clients=10, augment=augment),
      'num_examples': FLAGS.num_examples, 'device': FLAGS.device,
      'cohort_size': FLAGS.num_clients_timed}
  return pair(task, FLAGS.repeats, list(dict.fromkeys(FLAGS.side)))


def pair(task: dict, repeats: int, sides: Sequence[str]) -> dict:
  """Measures a task of benchmarks/bench_child.py; the sides take turns."""
  children, case = {}, {}
  try:
    for side in sides:
      children[side] = bench_child.Child(task | {'kind': side})
      case[side] = children[side].ready | {'repeats': []}
    for _ in range(repeats):
      for side, child in children.items():
        case[side]['repeats'].append(child.ask({}))
  finally:
    for child in children.values():
      child.close()
  return compare(case)


def compare(sides: dict[str, dict]) -> dict:
  """Returns each side's median rate, and paired ratios with their median.

  Ratios to PyTorch's threads are `ratios` and `ratio`; those to its processes
  are `ratios_to_processes` and `ratio_to_processes`.

  Raises:
    ValueError: if rounds trained on different numbers of examples.
  """
  rates, results = {}, {}
  for side, measured in sides.items():
    rates[side] = [
        r['num_examples'] / r['seconds'] for r in measured['repeats']]
    results[side] = measured | {
        'examples_per_second': statistics.median(rates[side])}
  counts = {r['num_examples'] for measured in sides.values()
            for r in measured['repeats']}
  if len(counts) > 1:
    raise ValueError('all rounds must train on the same number of examples, '
                     f'got {counts}')
  for side, suffix in ('theirs', ''), ('processes', '_to_processes'):
    if 'ours' in rates and side in rates:
      ratios = [a / b for a, b in zip(rates['ours'], rates[side])]
      results[f'ratios{suffix}'] = ratios
      results[f'ratio{suffix}'] = statistics.median(ratios)
  return results


def limit(algorithm: str, case: dict, rates: dict[str, float]) -> dict:
  """Returns a case's roofline, and the fractions of matmul rates it reached."""
  rate = case['ours']['examples_per_second']
  limits = bench_limit.limits(algorithm, Config.batch_size, rates)
  return {'limit': limits} | {
      f'fraction_of_{shape}': rate / limits[f'examples_per_second_of_{shape}']
      for shape in ('gemm_1024', 'gemm_conv1')}


def run_scaling() -> dict:
  """Measures the scaling tables and returns them with the environment."""
  tables = bench_scaling.measure(
      functools.partial(_config, FLAGS.algorithm),
      [int(n) for n in FLAGS.client_counts],
      _CIFAR10_SIZE if FLAGS.data_dir else FLAGS.num_examples, FLAGS.repeats)
  return bench_environment.describe() | {
      'algorithm': FLAGS.algorithm, 'tables': tables}


def _config(algorithm, **fields):
  """Returns fields of `Config`; the others default to the paper's values."""
  data_dir = FLAGS.data_dir
  return {
      'algorithm': algorithm, 'partition_seed': 0, 'lanes': FLAGS.lanes,
      'num_rounds': bench_child.WARM_UP + FLAGS.repeats, 'checkpoint_every': 0,
      'local_epochs': FLAGS.local_epochs, **fields,
      'data_dir': str(pathlib.Path(data_dir).expanduser().resolve())
                  if data_dir else ''}


def _golden():
  """Returns the path of the golden images."""
  path = FLAGS.golden or golden_dir.find() / 'simple_cnn.npz'
  return str(pathlib.Path(path).expanduser().resolve())


def main(argv: list[str]) -> None:
  """Measures, prints and writes the results."""
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; flags start with --')
  out = pathlib.Path(FLAGS.out)
  out.mkdir(parents=True, exist_ok=True)
  if FLAGS.part in ('recipe', 'all'):
    results = run_recipe()
    _write(out, 'recipe', results, bench_report.recipe_markdown(results))
  if FLAGS.part in ('scaling', 'all'):
    results = run_scaling()
    tables = results['tables']
    _write(out, 'scaling', results, bench_report.scaling_markdown(tables))
    bench_report.draw_scaling(
        tables, f'{FLAGS.algorithm}, {results["num_cores"]} cores',
        out / 'scaling.png')
    if any(point['num_compilations_after_first_round']
           for points in tables.values() for point in points):
      sys.exit('a round after the first one compiled; see scaling.json')


def _write(out, name, results, text):
  (out / f'{name}.json').write_text(
      json.dumps(results, indent=1) + '\n', encoding='utf-8')
  (out / f'{name}.md').write_text(text + '\n', encoding='utf-8')
  print(f'{text}\nwrote {out}/{name}.json and {out}/{name}.md', flush=True)


if __name__ == '__main__':
  define_flags()
  app.run(main)
