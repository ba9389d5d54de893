"""How fast it is: beside a plain PyTorch loop, and over numbers of clients.

python -m benchmarks.bench --data_dir=DIR --out=experiments/results/bench_cpu

recipe   The paper's CIFAR-10 setting (10 clients, Dirichlet 0.5, the split of
         seed 0, batches of 64), FedAvg and MOON (mu 5, k 1), with and without
         augmentation. Each side has a process of its own; after two warm-up
         rounds their rounds alternate, and never run at the same time. Before,
         both must agree to 1e-5 on losses and weights
         (benchmarks/bench_agreement.py); beside it stands what the hardware
         allows (benchmarks/bench_limit.py). Needs PyTorch: pip install
         '.[bench]'.
scaling  moon_jax alone. Examples a second compare at one batch size only, so
         there are three tables. All examples, iid, every client each round:
         in batches of 50, up to as many clients as have a whole batch, and of
         5, for ten times as many. And 50 examples a client, drawn with
         replacement, of which 100 clients a round take part. A process a
         point; the exit status is 1 where a round after the first compiled.

Takes tens of minutes on two CPU cores; --num_clients_timed, --case, --repeats
and --client_counts shorten it. Without --data_dir images are noise of the shape
of CIFAR-10's.
"""

import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import sys

from absl import app
from absl import flags

from benchmarks import bench_child
from benchmarks import bench_limit
from benchmarks import bench_report
from moon_jax.config import Config
from moon_jax.distributed import cpu_devices

FLAGS = flags.FLAGS

_ROOT = pathlib.Path(__file__).parents[1]
_GOLDEN = _ROOT.parent / 'shared' / 'golden' / 'simple_cnn.npz'
_CASES = {  # algorithm, whether images are augmented
    'fedavg': ('fedavg', False),
    'moon': ('moon', False),
    'fedavg, augmented': ('fedavg', True),
    'moon, augmented': ('moon', True),
}
_SIDES = ('ours', 'theirs')
_CLIENT_SIZE = 50  # examples of a client, where that is what is fixed
_COHORT_SIZE = 100  # of them a round
_BATCH_SIZES = (50, 5)  # where the examples of all are fixed
_HIDDEN = {'data_dir': 'DATA_DIR', 'golden': 'GOLDEN', 'out': 'OUT'}


def define_flags() -> None:
  """Not on import: moon_jax.train has flags of these names."""
  flags.DEFINE_string(
      'data_dir', '', 'Directory that holds CIFAR-10; none for noise.')
  flags.DEFINE_integer(
      'num_examples', 50_000, 'Examples of noise.', lower_bound=400)
  flags.DEFINE_string(
      'out', None, 'Directory of the results.', required=True)
  flags.DEFINE_enum(
      'part', 'all', ('recipe', 'scaling', 'all'), 'What to measure.')
  flags.DEFINE_integer(
      'repeats', 5, 'Timed rounds, after two of warm-up.', lower_bound=1)
  flags.DEFINE_integer(
      'local_epochs', 1, 'Local epochs a round.', lower_bound=1)
  flags.DEFINE_multi_enum(
      'case', list(_CASES), list(_CASES),
      'A case of recipe, once for each; all by default.')
  flags.DEFINE_multi_enum(
      'side', list(_SIDES), _SIDES,
      'moon_jax (ours) or PyTorch (theirs); both by default.')
  flags.DEFINE_integer(
      'num_clients_timed', 10, 'The first so many of the 10 clients of recipe '
      'train, for a quick run.', 1, 10)
  flags.DEFINE_enum(
      'device', 'cpu', ('cpu', 'cuda'), "PyTorch's; JAX takes its default.")
  flags.DEFINE_integer(
      'lanes', 0, "moon_jax's clients side by side; 0 chooses.", lower_bound=0)
  flags.DEFINE_string(
      'golden', None, 'simple_cnn.npz of the golden vectors, whose images both '
      'sides are compared on; by default ../shared/golden, else noise.')
  flags.DEFINE_list(
      'client_counts', '10,100,1000,10000', 'Numbers of clients of scaling.')
  flags.DEFINE_enum(
      'algorithm', 'moon', ('fedavg', 'moon'), 'Of scaling.')


def run_recipe() -> dict:
  """Measures the cases; returns all there is to know of them."""
  results = surroundings()
  both = set(FLAGS.side) == set(_SIDES)
  if both:
    results['differences'] = bench_child.answer({
        'kind': 'agreement', 'golden': _golden(), 'device': FLAGS.device})
    print(f'both sides agree: {results["differences"]}', flush=True)
  if 'ours' in FLAGS.side:
    results['rates'] = bench_child.answer({'kind': 'limit'})
  results['cases'] = {}
  for name in FLAGS.case:
    case = _case(*_CASES[name])
    if 'rates' in results:
      case |= limit(_CASES[name][0], case, results['rates'])
    results['cases'][name] = case
    print(f'{name}: ' + ', '.join(
        f'{side} {case[side]["examples_per_second"]:,.0f} examples/s'
        for side in FLAGS.side)
          + (f', ratio {case["ratio"]:.2f}' if both else ''), flush=True)
  return results


def _case(algorithm, augment):
  """One case, its sides a repeat each in turn."""
  task = {
      'config': _config(algorithm, num_clients=10, augment=augment),
      'num_examples': FLAGS.num_examples, 'device': FLAGS.device,
      'cohort_size': FLAGS.num_clients_timed}
  children, case = {}, {}
  try:
    for side in dict.fromkeys(FLAGS.side):
      children[side] = bench_child.Child(task | {'kind': side})
      case[side] = children[side].ready | {'repeats': []}
    for _ in range(FLAGS.repeats):
      for side, child in children.items():
        case[side]['repeats'].append(child.ask({}))
  finally:
    for child in children.values():
      child.close()
  return case | compare({side: case[side] for side in children})


def compare(sides: dict[str, dict]) -> dict:
  """Medians of the sides, and of both the median of the paired ratios.

  Raises:
    ValueError: where they trained on unlike numbers of examples.
  """
  rates, found = {}, {}
  for side, measured in sides.items():
    rates[side] = [
        r['num_examples'] / r['seconds'] for r in measured['repeats']]
    found[side] = measured | {
        'examples_per_second': statistics.median(rates[side])}
  counts = {r['num_examples'] for measured in sides.values()
            for r in measured['repeats']}
  if len(counts) > 1:
    raise ValueError(f'rounds of unlike numbers of examples: {counts}')
  if len(sides) == 2:
    found['ratios'] = [
        ours / theirs for ours, theirs in zip(*map(rates.get, _SIDES))]
    found['ratio'] = statistics.median(found['ratios'])
  return found


def limit(algorithm: str, case: dict, rates: dict[str, float]) -> dict:
  """The roofline of a case, and what fraction of products' rates it reached."""
  rate = case['ours']['examples_per_second']
  limits = bench_limit.limits(algorithm, Config.batch_size, rates)
  return {'limit': limits} | {
      f'fraction_of_{shape}': rate / limits[f'examples_per_second_of_{shape}']
      for shape in ('gemm_1024', 'gemm_conv1')}


def run_scaling() -> dict:
  """Measures every point of the three tables."""
  total = 50_000 if FLAGS.data_dir else FLAGS.num_examples
  counts = sorted(int(n) for n in FLAGS.client_counts)
  tables = {}
  for batch_size in _BATCH_SIZES:
    title = f'{total:,} examples in all, batches of {batch_size}'
    tables[title] = [
        _point(n, n, batch_size, None)
        for n in counts if total // n >= batch_size]
  title = f'{_CLIENT_SIZE} examples a client, batches of {_CLIENT_SIZE}'
  tables[title] = [
      _point(n, min(n, _COHORT_SIZE), _CLIENT_SIZE, _CLIENT_SIZE)
      for n in counts]
  return surroundings() | {'algorithm': FLAGS.algorithm, 'tables': tables}


def _point(num_clients, cohort_size, batch_size, client_size):
  found = bench_child.answer({
      'kind': 'scaling', 'num_examples': FLAGS.num_examples,
      'cohort_size': cohort_size, 'client_size': client_size,
      'repeats': FLAGS.repeats,
      'config': _config(FLAGS.algorithm, num_clients=num_clients,
                        batch_size=batch_size, partition='iid')})
  found |= {
      'num_clients': num_clients, 'cohort_size': cohort_size,
      'batch_size': batch_size,
      'seconds_per_round': statistics.median(found['seconds']),
      'peak_gigabytes': found['peak_bytes'] / 1e9}
  print(f'{num_clients:,} clients, {cohort_size:,} a round, batches of '
        f'{batch_size}: {found["examples_per_second"]:,.0f} examples/s, '
        f'{found["seconds_per_round"]:.2f} s a round, '
        f'{found["peak_gigabytes"]:.2f} GB', flush=True)
  return found


def _config(algorithm, **fields):
  """Of `moon_jax.config.Config`, whose defaults are the paper's."""
  data_dir = FLAGS.data_dir
  return {
      'algorithm': algorithm, 'partition_seed': 0, 'lanes': FLAGS.lanes,
      'num_rounds': bench_child.WARM_UP + FLAGS.repeats, 'checkpoint_every': 0,
      'local_epochs': FLAGS.local_epochs, **fields,
      'data_dir': str(pathlib.Path(data_dir).expanduser().resolve())
                  if data_dir else ''}


def _golden():
  """The path of the golden images, or ''."""
  if FLAGS.golden:
    return str(pathlib.Path(FLAGS.golden).expanduser().resolve())
  return str(_GOLDEN) if _GOLDEN.exists() else ''


def surroundings() -> dict:
  """What a figure depends on besides the code."""
  return {
      'command': command(sys.argv[1:]),
      'versions': {'python': platform.python_version()} | {
          name: _version(name) for name in (
              'moon_jax', 'jax', 'jaxlib', 'torch', 'numpy')},
      'cpu': _cpu(),
      'num_cores': cpu_devices.count(),
      'load_average_before': os.getloadavg()[0],
      'compilation_cache': 'off'}


def command(words: list[str]) -> str:
  """The command, without this machine's paths."""
  found = ['python -m benchmarks.bench']
  for word in words:
    name, equals, _ = word.partition('=')
    hidden = _HIDDEN.get(name.lstrip('-'))
    found.append(f'{name}={hidden}' if hidden and equals else word)
  return ' '.join(found)


def _version(name):
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None


def _cpu():
  cpuinfo = pathlib.Path('/proc/cpuinfo')
  for line in (cpuinfo.read_text() if cpuinfo.exists() else '').splitlines():
    if line.startswith('model name'):
      return line.partition(':')[2].strip()
  return platform.processor()


def main(argv: list[str]) -> None:
  """Measures, prints and writes; see the module's docstring."""
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
      sys.exit('a round after the first compiled; see scaling.json')


def _write(out, name, results, text):
  (out / f'{name}.json').write_text(
      json.dumps(results, indent=1) + '\n', encoding='utf-8')
  (out / f'{name}.md').write_text(text + '\n', encoding='utf-8')
  print(f'{text}\nin {out}: {name}.json, {name}.md', flush=True)


if __name__ == '__main__':
  define_flags()
  app.run(main)
