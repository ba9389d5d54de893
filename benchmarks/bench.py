"""Measures speed: against a plain PyTorch loop, and over numbers of clients.

python -m benchmarks.bench --data_dir=DIR --out=OUT

recipe   The paper's CIFAR-10 setting (10 clients, Dirichlet 0.5, the split of
         seed 0, batches of 64), FedAvg and MOON (mu 5, k 1), with and without
         augmentation. moon_jax and PyTorch run in separate processes. After two
         warm-up rounds their rounds alternate and never run at the same time.
         First, losses and weights of both must agree to 1e-5. The results
         include the limit of the arithmetic (`limits`). Needs
         PyTorch: pip install '.[bench]'.
resnets  The same sides with ResNet-18 and ResNet-50, without augmentation: two
         clients of 128 examples, batches of 64.
vit      The same sides with ViT-tiny, without augmentation: ten clients, each
         of which takes a step on 32 examples, and images of 32x32 in patches of
         4x4. moon_jax has ten lanes, or as many as it chooses. PyTorch's
         network is timm's. No check that both sides agree comes first.
scaling  moon_jax alone, in three tables, because examples per second are
         comparable only at the same batch size. Two tables split all examples
         iid over the clients, which all take part in each round: in batches of
         50, up to the number of clients that still have a full batch, and in
         batches of 5, for ten times as many clients. In the third table each
         client draws 50 different examples, and 100 clients take part in
         each round. Each point runs in a separate process. The exit status is 1
         if a round after the first one compiled.

Takes tens of minutes on two CPU cores; --num_clients_timed, --case, --repeats
and --client_counts shorten it. Without --data_dir the images are noise with the
shape of CIFAR-10's.
"""

import argparse
from collections.abc import Sequence
import functools
import pathlib
import statistics
import sys
import timeit

from benchmarks import common, sides

_CIFAR10_SIZE = 50_000  # training examples
_METHODS = 'fedavg', 'moon'
_CASES = {  # part -> case -> fields of its configuration
    'recipe': {f'{method}{suffix}': {
        'algorithm': method, 'num_clients': 10, 'augment': bool(suffix)}
               for suffix in ('', ', augmented') for method in _METHODS},
    'resnets': {f'{model}, {method}': {
        'algorithm': method, 'num_clients': 2, 'augment': False, 'model': model}
                for model in ('resnet18', 'resnet50') for method in _METHODS},
    'vit': {f'vit, fedavg{suffix}': {
        'algorithm': 'fedavg', 'num_clients': 10, 'augment': False,
        'batch_size': 32, 'model': 'vit(patch_size=4)', 'lanes': num_lanes}
            for suffix, num_lanes in ((', 10 lanes', 10), ('', 0))},
}
_SIZES = {  # clients per round and examples of each
    'resnets': {'cohort_size': 2, 'client_size': 128},
    'vit': {'cohort_size': 10, 'client_size': 32}}
_SIDES = {'ours': sides.ours, 'theirs': sides.theirs,
          'processes': functools.partial(sides.theirs, is_parallel=True)}
# Layers of the paper's network, in multiply-adds.
_CONVS = (28 * 28 * 6 * 75, 10 * 10 * 16 * 150)
_DENSE = (400 * 120, 120 * 84, 84 * 84, 84 * 256)
_OUT = 256 * 10
_PRODUCTS = {  # of matrices: m, k, n
    'gemm_1024': (1024, 1024, 1024),
    'gemm_conv1': (24, 108, 12_544),  # conv1 with its pooling, 64 images
}
_SECONDS = '{:.1f}'.format


def main() -> None:
  """Measures, prints and writes the results."""
  parser = common.parser(__doc__)
  add = parser.add_argument
  add('--data_dir', default='',
      help='directory that contains CIFAR-10; without it images are noise')
  add('--num_examples', type=int, default=_CIFAR10_SIZE,
      help='number of noise examples')
  add('--part', choices=(*_CASES, 'scaling', 'all'),
      default='all', help='what to measure')
  add('--repeats', type=int, default=5,
      help='timed rounds after the two warm-up rounds (default: 5)')
  add('--case', action='append',
      choices=[case for part in _CASES.values() for case in part],
      help='case of recipe, resnets or vit; may be repeated (default: all)')
  add('--side', choices=_SIDES, action='append', help='moon_jax (ours), '
      'PyTorch with one thread per core (theirs), or PyTorch with one process '
      'per core (processes, CPUs only); may be repeated (default: all)')
  add('--num_clients_timed', type=int, default=10, help='number of the 10 '
      'clients that train in the recipe part; fewer for a quick run')
  add('--device', choices=('cpu', 'cuda'), default='cpu',
      help="PyTorch's device; JAX uses its default device")
  add('--client_counts', default='10,100,1000,10000',
      help='numbers of clients in the scaling part')
  add('--algorithm', choices=('fedavg', 'moon'), default='moon',
      help='algorithm of the scaling part')
  args = parser.parse_args()
  if args.data_dir:
    args.num_examples = _CIFAR10_SIZE
  for part in _CASES:
    if args.part in (part, 'all'):
      results = run_cases(args, part)
      common.write(args.out, part, results, recipe_markdown(results))
  if args.part in ('scaling', 'all'):
    results = run_scaling(args)
    tables = results['tables']
    common.write(args.out, 'scaling', results, scaling_markdown(tables))
    draw_scaling(tables, f'{args.algorithm}, {results["num_cores"]} cores',
                 args.out / 'scaling.png')
    if any(point['num_compilations_after_first_round']
           for points in tables.values() for point in points):
      sys.exit('a round after the first one compiled; see scaling.json')


def _task(args: argparse.Namespace, **config) -> sides.Task:
  """Returns a task; fields of `Config` default to the paper's values."""
  return {
      'num_examples': args.num_examples, 'device': args.device,
      'repeats': args.repeats, 'config': {
          'partition_seed': 0, 'local_epochs': 1,
          'num_rounds': sides.WARM_UP + args.repeats, 'checkpoint_every': 0,
          'data_dir': args.data_dir, **config}}


# Recipe.


def run_cases(args: argparse.Namespace, part: str) -> dict:
  """Measures the cases of a part; returns results and the environment."""
  names = [name for name in _SIDES if name in (args.side or _SIDES)]
  is_recipe = part == 'recipe'
  results = common.describe('bench') | {'cases': {}}
  if 'ours' in names and len(names) > 1 and part in sides.COMPARED:
    results['differences'] = common.run(sides.agreement, args.device, part)
    print(f'both sides agree: {results["differences"]}', flush=True)
  if 'ours' in names and is_recipe:
    results['rates'] = common.run(measure_products)
  for name, fields in _CASES[part].items():
    if args.case and name not in args.case:
      continue
    case = pair(_task(args, **fields) | (
        {'cohort_size': args.num_clients_timed} if is_recipe
        else _SIZES[part]), names)
    print(f'{name}: ' + ', '.join(
        f'{side} {case[side]["examples_per_second"]:,.1f} examples/s'
        for side in names), flush=True)
    if 'rates' in results:
      case |= limit(fields['algorithm'], case, results['rates'])
    results['cases'][name] = case
  return results


def pair(task: sides.Task, names: Sequence[str]) -> dict:
  """Measures a task; the sides take turns."""
  children, case = {}, {}
  try:
    for side in names:
      children[side] = common.Child(_SIDES[side], task)
      case[side] = children[side].ready | {'repeats': []}
    for _ in range(task['repeats']):
      for side, child in children.items():
        case[side]['repeats'].append(child.ask())
  finally:
    for child in children.values():
      child.close()
  return compare(case)


def compare(case: dict[str, dict]) -> dict:
  """Returns each side's median rate, and paired ratios with their median.

  Ratios to PyTorch's threads are `ratios` and `ratio`; those to its processes
  are `ratios_to_processes` and `ratio_to_processes`.

  Raises:
    ValueError: if rounds trained on different numbers of examples.
  """
  rates, results = {}, {}
  for side, measured in case.items():
    rates[side] = [
        r['num_examples'] / r['seconds'] for r in measured['repeats']]
    results[side] = measured | {
        'examples_per_second': statistics.median(rates[side])}
  counts = {r['num_examples'] for measured in case.values()
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
  """Returns a case's fractions of the examples/s that arithmetic alone allows.

  Arithmetic at the rates of matrix products.
  """
  flops = flops_per_example(algorithm) * case['ours']['examples_per_second']
  return {f'fraction_of_{shape}': flops / rates[f'{shape}_flops_per_second']
          for shape in _PRODUCTS}


def flops_per_example(algorithm: str) -> int:
  """Returns FLOP per example of a local step of the paper's network.

  A multiply-add counts as two. They are counted from the shapes of the layers:
  once for the forward pass and twice for the backward pass, without the
  gradient of the images. MOON adds two forward passes up to the projection.
  """
  frozen = sum(_CONVS) + sum(_DENSE)
  forward = frozen + _OUT
  return 2 * (3 * forward - _CONVS[0] + 2 * frozen * (algorithm == 'moon'))


def measure_products() -> dict[str, float]:
  """Returns FLOP/s of float32 matrix products, the best of 20 timings each.

  The best, so that other load on the machine matters less.
  """
  import jax
  import jax.numpy as jnp

  rates = {}
  for name, (m, k, n) in _PRODUCTS.items():
    a, b = jnp.ones((m, k)), jnp.ones((k, n))
    dot = jax.jit(functools.partial(jnp.dot, precision='highest'))
    dot(a, b).block_until_ready()
    timer = timeit.Timer(lambda: dot(a, b).block_until_ready())
    num_calls, _ = timer.autorange()
    number = max(1, num_calls // 20)
    seconds = min(timer.repeat(20, number)) / number
    rates[f'{name}_flops_per_second'] = 2 * m * k * n / seconds
  return rates


def recipe_markdown(results: dict) -> str:
  """Returns a Markdown table with one row per case."""
  def cell(*names, form='{:.2f}'.format):
    def value(row):
      found = row[1]
      for name in names:
        found = found.get(name, {})
      return '' if found == {} else form(found)
    return value

  rate = 'examples_per_second'
  columns = {
      'case': lambda row: row[0],
      'moon_jax, examples/s': cell('ours', rate, form=rate_text),
      'PyTorch, a thread per core': cell('theirs', rate, form=rate_text),
      'ratio': cell('ratio'),
      'PyTorch, a process per core': cell('processes', rate, form=rate_text),
      'ratio to processes': cell('ratio_to_processes'),
      'compiling, s': cell('ours', 'compile_seconds', form=_SECONDS)}
  titles = {'ours': 'moon_jax', 'theirs': 'one process',
            'processes': 'the processes'}
  columns |= {f'peak memory of {title}, GB': functools.partial(_peak, side)
              for side, title in titles.items()
              if any(_peak(side, row) for row in results['cases'].items())}
  if 'rates' in results:
    columns |= {'of the float32 product 1024^3': cell('fraction_of_gemm_1024'),
                "of conv1's": cell('fraction_of_gemm_conv1')}
  return common.table(columns, results['cases'].items())


def _peak(side, row):
  """Returns the peak memory of a side of a case, '' if it was not measured."""
  repeats = row[1].get(side, {}).get('repeats', [{}])
  peak = repeats[-1].get('peak_bytes')
  return '' if peak is None else f'{peak / 1e9:.2f}'


def rate_text(rate: float) -> str:
  """Returns examples per second with three digits or more."""
  return f'{rate:,.0f}' if rate >= 100 else f'{rate:.1f}'


# Scaling.


def run_scaling(args: argparse.Namespace) -> dict:
  """Measures the scaling tables and returns them with the environment."""
  results = common.describe('bench')
  counts = sorted(map(int, args.client_counts.split(',')))
  tables = {}
  for batch_size in (50, 5):
    tables[f'{args.num_examples:,} examples in all, batches of {batch_size}'
           ] = [_point(args, n, n, batch_size) for n in counts
                if args.num_examples // n >= batch_size]
  tables['50 examples per client, batches of 50'] = [
      _point(args, n, min(n, 100), 50, client_size=50) for n in counts]
  return results | {'algorithm': args.algorithm, 'tables': tables}


def _point(args, num_clients, cohort_size, batch_size, client_size=None):
  """Measures one number of clients in a separate process."""
  result = common.run(sides.scaling, _task(
      args, algorithm=args.algorithm, num_clients=num_clients,
      batch_size=batch_size, partition='iid') | {
          'cohort_size': cohort_size, 'client_size': client_size})
  result |= {
      'num_clients': num_clients, 'cohort_size': cohort_size,
      'batch_size': batch_size,
      'seconds_per_round': statistics.median(result['seconds']),
      'peak_gigabytes': result['peak_bytes'] / 1e9}
  print(f'{num_clients:,} clients, {cohort_size:,} per round, batches of '
        f'{batch_size}: {result["examples_per_second"]:,.0f} examples/s',
        flush=True)
  return result


def scaling_markdown(tables: dict[str, list[dict]]) -> str:
  """Returns the Markdown tables, with one row per number of clients."""
  columns = {heading: lambda point, field=field, form=form: form.format(
      point[field]) for heading, field, form in (
          ('clients', 'num_clients', '{:,}'),
          ('clients per round', 'cohort_size', '{:,}'),
          ('examples/s', 'examples_per_second', '{:,.0f}'),
          ('seconds per round', 'seconds_per_round', '{:.3f}'),
          ('lanes', 'lanes', '{}'),
          ('lanes busy', 'lane_utilisation', '{:.3f}'),
          ('planning, s', 'planning_seconds', '{:.4f}'),
          ('compiling, s', 'compile_seconds', '{:.1f}'),
          ('peak memory, GB', 'peak_gigabytes', '{:.2f}'),
          ('compilations after the first round',
           'num_compilations_after_first_round', '{}'))}
  return '\n\n'.join(f'{title}:\n\n{common.table(columns, points)}'
                     for title, points in tables.items())


def draw_scaling(tables: dict[str, list[dict]], title: str,
                 path: pathlib.Path) -> None:
  """Plots examples/s and seconds per round over clients, as a PNG file."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(9, 4.4), layout='constrained')
  ticks = sorted({point['num_clients'] for points in tables.values()
                  for point in points})
  left, right = figure.subplots(1, 2)
  for axes, field in ((left, 'examples_per_second'),
                      (right, 'seconds_per_round')):
    for name, points in tables.items():
      axes.plot([point['num_clients'] for point in points],
                [point[field] for point in points], 'o-', label=name)
    axes.set(xscale='log', xlabel='clients', ylabel=field.replace('_', ' '))
    axes.set_xticks(ticks, [f'{n:,}' for n in ticks])
    axes.minorticks_off()
    axes.grid(alpha=.3)
  left.set_ylim(bottom=0)
  right.set_yscale('log')
  figure.legend(*left.get_legend_handles_labels(), loc='outside lower center')
  figure.suptitle(title)
  figure.savefig(path, dpi=120)


if __name__ == '__main__':
  main()
