"""Formats the results of each stage as tables, one function per stage.

The argument of each function is a dict from the name of a part to its result.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from benchmarks import bench_report
from benchmarks import precision

_MAX_KERNELS = 15  # rows in the table of kernels
Results = dict[str, dict[str, Any]]


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """Returns a Markdown table, or '' if there are no rows."""
  if not rows:
    return ''
  line = lambda cells: '| ' + ' | '.join(
      str(cell).replace('|', '\\|') for cell in cells) + ' |'
  return '\n'.join([line(headings), '|---' * len(headings) + '|',
                    *map(line, rows)])


def details(title: str, text: str) -> str:
  """Returns a collapsed block of plain text."""
  fence = '````'
  return (f'<details><summary>{title}</summary>\n\n{fence}\n{text.strip()}\n'
          f'{fence}\n\n</details>')


def _tests(results: Results) -> str:
  errors = {name: r for name, r in results.items() if 'choice' in r}
  test_runs = {name: r for name, r in results.items() if name not in errors}
  rows = [(name, r['passed'], len(r['failed']), r['skipped'],
           r.get('running', '')) for name, r in test_runs.items()]
  failures = [details(failure['test'], failure['error'])
              for r in test_runs.values() for failure in r['failed']]
  return _join(table(
      ('tests', 'passed', 'failed', 'skipped', 'running when stopped'), rows),
      precision.table({
          name.removeprefix('errors of '): r for name, r in errors.items()}
                      ).strip() if errors else '', *failures)


def _speed(results: Results) -> str:
  pairs = [(name, _count(r['ours']['examples_per_second']),
            _count(r['theirs']['examples_per_second']), f'{r["ratio"]:.2f}',
            _seconds(r['ours']['seconds_per_round']),
            _seconds(r['theirs']['seconds_per_round']), r['ours']['lanes'],
            f'{r["ours"]["compile_seconds"]:.1f}')
           for name, r in results.items() if 'ratio' in r]
  alone = [(name, r['lanes'], _seconds(r['seconds_per_round']),
            _count(r['examples_per_second']), f'{r["compile_seconds"]:.1f}')
           for name, r in results.items() if 'repeats' in r]
  sentences = []
  if differences := results.get('agreement'):
    sentences.append('Both sides agree: largest differences ' + ', '.join(
        f'{name} {value:.1e}' for name, value in differences.items()) + '.')
  if rates := results.get('rates of products and copies'):
    sentences.append(
        'Float32 matrix products of 1024 x 1024: '
        f'{rates["gemm_1024_flops_per_second"] / 1e12:.1f} TFLOP/s; copies: '
        f'{rates["copy_bytes_per_second"] / 1e12:.2f} TB/s.')
  profile = results.get('profile')
  return _join(
      table(('case', 'moon_jax, examples/s', 'PyTorch, examples/s',
             'ratio (median of pairs)', 'moon_jax, s per round',
             'PyTorch, s per round', 'lanes', 'compiling, s'), pairs),
      table(('moon_jax alone', 'lanes', 's per round (median)', 'examples/s',
             'compiling, s'), alone),
      ' '.join(sentences), _profile(profile) if profile else '')


def _profile(r):
  calls = ', '.join(f'{name} {count:,}'
                    for name, count in r['host_calls'].items())
  return _join(
      f'A round of {r["rows"]:,} rows in {r["num_segments"]:,} segments and '
      f'{r["lanes"]} lanes, profiled: {r["kernels_per_row"]:.1f} kernels and '
      f'{r["copies_per_row"]:.1f} copies per row; the device was busy '
      f'{r["busy_seconds"]:.3f} of {r["span_seconds"]:.3f} s '
      f'({r["seconds"]:.3f} s without the profiler).'
      + (f' CUDA calls of the host: {calls}.' if calls else ''),
      table(('kernel', 'seconds', 'fraction', 'launches', 'launches per row'),
            [(f'`{k["name"]}`', f'{k["seconds"]:.4f}', f'{k["fraction"]:.1%}',
              f'{k["launches"]:,}', f'{k["launches"] / r["rows"]:.2f}')
             for k in r['top'][:_MAX_KERNELS]]))


def _train(results: Results) -> str:
  accuracy = lambda x: '' if x is None else f'{x:.4f}'
  return table(
      ('algorithm', 'rounds', 'test accuracy, last', 'best',
       's per round (median)', 'examples/s'),
      [(name, r['rounds'], accuracy(r['test_accuracy']),
        accuracy(r['best_test_accuracy']), _seconds(r['seconds_per_round']),
        _count(r['examples_per_second'])) for name, r in results.items()])


def _sweep(results: Results) -> str:
  return table(
      ('sweep', 'runs', 's per round, all runs', 'rows', 'one by one, s',
       'rows', 'ratio', 'first round, s', 'largest difference of parameters'),
      [(name, r['num_runs'], _seconds(r['seconds']), f'{r["rows"]:,}',
        _seconds(r['seconds_one_by_one']), f'{r["rows_alone"]:,}',
        f'{r["ratio"]:.2f}', f'{r["first_round_seconds"]:.1f}',
        f'{r["largest_difference"]:.1e}') for name, r in results.items()])


def _resnet(results: Results) -> str:
  rows = []
  for name, r in results.items():
    peak, forecast = r['peak_bytes'], r['forecast_bytes']
    rows.append((
        name, f'{1e3 * r["seconds_per_row"]:.2f}',
        _count(r['examples_per_second']), f'{r["compile_seconds"]:.0f}',
        f'{peak / 2**30:.2f}' if peak else '', f'{forecast / 2**30:.2f}',
        f'{peak / forecast:.2f}' if peak else '',
        f'{r["temporary_bytes"] / 2**30:.2f}'))
  return table(
      ('network', 'ms per row', 'examples/s', 'compiling, s',
       'peak memory, GiB', 'forecast, GiB', 'peak / forecast',
       'temporary memory, GiB'), rows)


def _scaling(results: Results) -> str:
  points = list(results.values())
  text = bench_report.scaling_markdown({'MOON, one local epoch': points})
  compiled = [p for p in points if p['num_compilations_after_first_round']]
  warning = '**A round after the first one compiled.**'
  return _join(text, warning * bool(compiled))


TITLES: dict[int, str] = {
    1: 'golden vectors and fast tests',
    2: 'speed compared with PyTorch',
    3: '100 rounds of MOON and FedAvg',
    4: '12 runs in one program',
    5: 'residual networks',
    6: '10,000 clients',
}
TABLES: dict[int, Callable[[Results], str]] = {
    1: _tests, 2: _speed, 3: _train, 4: _sweep, 5: _resnet, 6: _scaling}


def _join(*paragraphs):
  return '\n\n'.join(filter(None, paragraphs))


def _count(value):
  return '' if value is None else f'{value:,.0f}'


def _seconds(value):
  return '' if value is None else f'{value:.3f}'
