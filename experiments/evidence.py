"""Writes every measured figure of the documents from the kept files.

python -m experiments.evidence

Replaces the text between <!-- generated: NAME --> and <!-- end --> (in flag
files between # generated: NAME and # end) by what the function NAME, or that of
`BLOCKS`, returns, and draws the plots of experiments/full. A test fails if a
block is not what the kept files give, or if a figure stands outside of a block
(tests/experiments/evidence_test.py). `python -m experiments.keep` keeps runs
and measurements.
"""

from collections.abc import Callable
import math
import pathlib
import re
import statistics
import textwrap
from typing import Any

from benchmarks import bench, blazefl_own, common, kernel_counts
from benchmarks import gpu as gpu_benchmark
from benchmarks.cross_device import report as cross_device_report
from benchmarks.peers import report as peers_report
from experiments import kept
from experiments import where_to_begin as where_lib
from experiments.full import findings, tuned
from experiments.full import report as full_report
from experiments.full.analysis import CHANCE
from experiments.full.report import markdown
from moon_jax import train
from moon_jax.config import kinds, methods
from moon_jax.results import arms as arms_lib
from moon_jax.results import compare as compare_lib
from moon_jax.results import page, read, stats

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / 'experiments' / 'results'
DOCUMENTS = [ROOT / name for name in (
    'README.md', 'docs/moon.md', 'docs/performance.md',
    'experiments/results/README.md')] + sorted(
        (ROOT / 'experiments').glob('*.flags'))
_BLOCK = re.compile(
    r'^((?:<!--|#) generated: (\S+)(?: -->)?\n)(.*?)'
    r'^((?:<!--|#) end(?: -->)?)$',
    re.DOTALL | re.MULTILINE)
_TABLE = re.compile(
    r'(<!-- (table|accuracies): (\S+) -->\n).*?(<!-- end of table -->)',
    re.DOTALL)  # of the runs of an experiment
_MEANS_PAGE = 'experiments/results/README.md#feddyn_mean'
_LAST = 5  # rounds whose mean is the accuracy of a row


def rewritten(document: pathlib.Path) -> str:
  """Returns the text of a document with its blocks generated again."""
  def table(match):
    begin, kind, place, end = match.groups()
    rows = runs_table(place, has_speed=kind == 'table')
    return f'{begin}{rows}\n{end}'

  def block(match):
    begin, name, _, end = match.groups()
    text = (BLOCKS.get(name) or globals().get(name)
            or getattr(findings, name))()
    if document.suffix == '.flags':
      text = '\n'.join(f'# {line}' for line in text.split('\n'))
    return f'{begin}{text}\n{end}'

  return _BLOCK.sub(
      block, _TABLE.sub(table, document.read_text(encoding='utf-8')))


def runs_table(experiment: str, has_speed: bool) -> str:
  """Returns a Markdown table of runs, the most accurate method first."""
  arms = _arms(experiment)
  percent = lambda arm: [*arm.values(num_rounds=_LAST).values()]
  mus = [*filter(None, map(_mu, arms))]
  rows = []
  for arm in sorted(arms, key=lambda arm: -statistics.fmean(percent(arm))):
    stds = arm.values('test_accuracy_std', _LAST).values()
    labels = [f'{name} {value}' for name, value in arm.settings.items()
              if name not in ('algorithm', 'content of dataset', *_unread(arm))
              and value not in (
                  arms_lib.NO_VALUE, arms_lib.usual(name, arms))]
    if (mu := _mu(arm)) and 2 * mus.count(mu) <= len(mus):
      labels.insert(0, f'mu {mu}')
    row = {
        'method': ', '.join([
            methods.title(arm.config.algorithm.name), *labels]),
        f'test accuracy, mean of the last {_LAST} rounds':
            stats.mean_and_std(percent(arm), 3, .01) + (
                f' (over clients ± {statistics.fmean(stds) / 100:.3f})'
                if stds else ''),
        'seeds': str(len(arm.runs))}
    if has_speed:
      seconds, speed = (statistics.median(arm.summaries(name)) for name in (
          'seconds_per_round', 'examples_per_second'))
      row['seconds per round'] = f'{seconds:.1f}'
      row['examples/s'] = f'{speed:,.0f}'
    rows.append(row)
  return page.table('', rows)


def _mu(arm):
  mu = arm.config.args('algorithm').get('mu')
  return '' if mu is None else f'{mu:g}'


def _unread(arm):
  """Returns settings that say nothing about the clients of one place."""
  return ('num_clients', 'partition', 'participation') * (
      arm.config.algorithm.name == 'centralized')


def _measured(name):
  return kept.measurements()[name]


def _arms(experiment):
  return arms_lib.of_runs([*kept.runs(experiment).values()])


def _grouped(experiment, key):
  """Returns the runs of an experiment by `key`."""
  groups: dict[Any, list[read.Run]] = {}
  for run in kept.runs(experiment).values():
    groups.setdefault(key(run), []).append(run)
  return groups


def _of_last_rounds(runs):
  """Returns the mean accuracy of the last rounds of each run, in percent."""
  return [100 * stats.mean_of_last(run.values('test_accuracy'), _LAST)
          for run in runs]


def _span(values, form='.2f'):
  ends = [f'{value:{form}}' for value in (min(values), max(values))]
  return ends[0] if ends[0] == ends[1] else ' to '.join(ends)


# Speed


_PEERS = {  # the modes that were run; the fastest one counts
    'PFLlib': ('PFLlib', 'PFLlib, without its file reads'),
    'fluke': ('fluke',),
    'FL-bench': ('FL-bench', 'FL-bench, ray'),
    'Flower': ('Flower', 'Flower, processes', 'Flower, batched',
               'Flower, batched, processes'),
    'BlazeFL': ('BlazeFL', 'BlazeFL, processes', 'BlazeFL, batched',
                'BlazeFL, batched, processes', 'BlazeFL, batched, threads'),
    'pfl-research': ('pfl-research', 'pfl-research, processes'),
    'FedJAX': ('FedJAX',)}
_LOOP = 'PyTorch loop, processes'
_PROCESSORS = {
    'Zen 5': 'peers_zen5', 'Zen 1': 'peers_zen1', 'Xeon': 'peers',
    'EPYC': 'peers_growth', "reviewer's EPYC": 'peers_elsewhere'}


def speed() -> str:
  """One paragraph for the README."""
  def among(names, algorithm, *measurements):
    return _span([x for name in names
                  for measurement in measurements or _PROCESSORS.values()
                  if (x := _multiple(measurement, name, algorithm))], '.1f')

  torch = [name for name in _PEERS if name not in ('FedJAX', 'PFLlib')]
  loop = lambda name, algorithm: among([name], algorithm, 'peers_zen5')
  usual = [name for name in _PROCESSORS.values() if name != 'peers_zen1']
  ours, theirs = _cross_device_seconds()
  own = blazefl_own.multiple(_measured('blazefl_own'), 'BlazeFL, processes')
  seconds = lambda side: ' and '.join(
      f'{x:.2f}' for x in _seconds_of_passes('peers_zen1', side))
  num_faster, num_measured = _faster_than_slowest('peers_zen1')
  return _filled(
      "**Speed** on two CPU cores, with CIFAR-10, MOON's small CNN and "
      f'{peers_report.CLIENTS} clients. In {len(usual)} of '
      f'{len(_PROCESSORS)} measurements a round of FedAvg takes '
      f'{among(torch, "fedavg", *usual)} times as long in fluke, FL-bench, '
      'Flower, BlazeFL and pfl-research as in moon_jax, and '
      f'{among(["FedJAX"], "fedavg", *usual)} times as long in FedJAX. A round '
      f'of MOON takes {among(_PEERS, "moon", *usual)} times as long in PFLlib, '
      'fluke, FL-bench and Flower. On the newest processor, an AMD EPYC of '
      f'Zen 5, these ratios are {among(torch, "fedavg", "peers_zen5")} for '
      f'FedAvg (FedJAX {among(["FedJAX"], "fedavg", "peers_zen5")}; PFLlib, '
      'without the time in which it reads files, '
      f'{among(["PFLlib"], "fedavg", "peers_zen5")}) and '
      f'{among(_PEERS, "moon", "peers_zen5")} for MOON. In the other three of '
      'the four the PyTorch simulators have a slower form of the network; a '
      'reviewer made one of these three, and its logs are not kept. Much of '
      'this is '
      'not the simulator: on Zen 5 a plain PyTorch loop in one process takes '
      f'{loop("PyTorch loop", "fedavg")} times as long for FedAvg and '
      f'{loop("PyTorch loop", "moon")} for MOON, in two processes '
      f'{loop(_LOOP, "fedavg")} and {loop(_LOOP, "moon")}. '
      f"BlazeFL's own benchmark, run once and without compilation, takes "
      f"{own:.1f} times as long in BlazeFL's processes; the threads that "
      'BlazeFL recommends were not measured there. **moon_jax is not always '
      'faster.** In the fifth measurement, on an AMD EPYC of Zen 1 without '
      f'AVX-512, a round took moon_jax {seconds("moon_jax")} s in two runs, '
      f'and the loop in two processes {seconds(_LOOP)} s; {num_faster} of '
      f'{num_measured} simulators are faster than the slower run. '
      "pfl-research's own benchmark is faster in pfl-research: on an Intel "
      f'Xeon a round takes {theirs:.2f} s there and {ours:.2f} s in moon_jax. '
      'It was also faster on a Zen 4, but those runs are not kept. On the '
      'Xeon, with two small clients, moon_jax trains ResNets at '
      f'{_span(_resnet_ratios())} of the speed of PyTorch '
      '([performance](docs/performance.md)).')


def _filled(text):
  """Returns a paragraph with lines of the width of the pages."""
  return textwrap.fill(
      text, 120, break_long_words=False, break_on_hyphens=False)


def _multiple(measurement, name, algorithm):
  """Returns seconds per round over moon_jax's, of the fastest mode; or None.

  peers_elsewhere has the ratios only.
  """
  kept = _measured(measurement)
  seconds = ({'moon_jax': 1.} | kept[algorithm] if 'runs' not in kept else
             peers_report.side_means(_few_clients(kept), algorithm))
  means = [seconds[mode] for mode in _PEERS.get(name, (name,))
           if mode in seconds]
  return min(means) / seconds['moon_jax'] if means else None


def _few_clients(kept):
  return [run for run in kept['runs']
          if run['clients'] == peers_report.CLIENTS]


def _seconds_of_passes(measurement, side):
  """Returns a side's seconds per round of FedAvg, by pass."""
  return [peers_report.seconds_per_round(run) for run in sorted(
      _measured(measurement)['runs'], key=lambda run: run['pass'])
          if (run['algorithm'], run['side']) == ('fedavg', side)]


def _faster_than_slowest(measurement):
  """Returns how many simulators are faster than moon_jax's slowest run.

  Of FedAvg, in their fastest modes; and how many were measured.
  """
  means = peers_report.side_means(_measured(measurement)['runs'], 'fedavg')
  slowest = max(
      peers_report.seconds_per_round(run)
      for run in _measured(measurement)['runs'] if run['side'] == 'moon_jax')
  fastest = [min(found) for modes in _PEERS.values()
             if (found := [means[mode] for mode in modes if mode in means])]
  return sum(seconds < slowest for seconds in fastest), len(fastest)


def _resnet_ratios():
  return [case[field] for case in _measured('resnets')[
      'cases'].values() for field in ('ratio', 'ratio_to_processes')]


def speed_ranges() -> str:
  """Ratios by processor, and what they are ratios of."""
  columns = {
      f'{name}, {title}': (measurement, algorithm)
      for algorithm, name in (('fedavg', 'FedAvg'), ('moon', 'MOON'))
      for title, measurement in _PROCESSORS.items()
      if _multiple(measurement, _LOOP, algorithm)}
  rows = [['side', *columns]]
  for name in (*_PEERS, 'PyTorch loop', _LOOP):
    found = [_multiple(measurement, name, algorithm)
             for measurement, algorithm in columns.values()]
    rows.append([name, *(f'{x:.2f}' if x else '' for x in found)])
  kernels, simulators = zip(*_parts('peers_zen5'))
  _, before = zip(*_parts('peers_zen1'))
  return (
      f'{markdown(rows)}\n\n'
      f'Times as long as moon_jax takes, with {peers_report.CLIENTS} clients. '
      'A simulator has the time of its fastest mode.\n'
      'The seconds in which PFLlib reads files are left out where they were '
      'measured.\n\n'
      '- Zen 5 and Zen 1: AMD EPYC [with](#an-amd-epyc-of-zen-5) and '
      '[without](#an-amd-epyc-of-zen-1) AVX-512. All PyTorch simulators have '
      'the\n  network of the PyTorch loop. On Zen 1 all ratios are uncertain.\n'
      '- [Xeon](#an-intel-xeon) and [EPYC](#numbers-of-clients): earlier '
      'measurements, without BlazeFL. The PyTorch\n  simulators have a slower '
      'form of the network than the loop (channels first, ReLU before '
      'pooling), and fewer modes of\n  pfl-research and Flower were run. The '
      "reviewer's measurement was of this kind, too; its logs are not kept\n"
      '  ([figures](../experiments/results/measurements.json)).\n'
      '- **Much of a ratio is not the simulator.** On Zen 5 the PyTorch loop '
      f'takes {_span(kernels)} times as long as moon_jax for\n  FedAvg, and '
      "the PyTorch simulators, in their fastest modes and without PFLlib's "
      f'file reads,\n  {_span(simulators)} times as long as the loop '
      f'({_span(before)} times on Zen 1; '
      '[two factors](#kernels-and-simulator)).\n'
      '- With residual networks moon_jax was [slower than '
      'PyTorch](#against-a-pytorch-loop).')


def _parts(measurement):
  """Returns (kernels, simulator) of each PyTorch simulator's fastest mode."""
  found = peers_report.parts(_measured(measurement)['runs'])
  return [next(found[mode] for mode in found if mode in modes)  # sorted
          for modes in ({*modes} - {'PFLlib'} for modes in _PEERS.values())
          if modes & found.keys()]


def peers_check() -> str:
  found = _measured('peers_check')['differences']
  return (f"The largest difference of a weight from the PyTorch loop's over "
          f'{len(found) - 1} sides is {max(found.values()):.0e}.')


def peers_zen5() -> str:
  """All sides on the newest processor, and their versions."""
  runs = _measured('peers_zen5')['runs']
  versions = {run['side']: run['versions'] for run in runs}
  return (
      f'{peers_report.by_method(runs)}\n\nPyTorch '
      f'{versions["PyTorch loop"]["torch"]}; moon_jax with JAX '
      f'{versions["moon_jax"]["jax"]}, FedJAX with JAX '
      f'{versions["FedJAX"]["jax"]}.')


def peers_zen1() -> str:
  """Sides on an older processor; how moon_jax's runs lie among them."""
  runs = _measured('peers_zen1')['runs']
  here, there = (peers_report.side_means(of, 'fedavg') for of in (
      runs, _measured('peers_zen5')['runs']))
  ours = [peers_report.seconds_per_round(run) for run in runs
          if run['side'] == 'moon_jax']
  between = [side for side, seconds in here.items()
             if side != 'moon_jax' and min(ours) < seconds < max(ours)]
  slower = [seconds / there['moon_jax'] for seconds in sorted(ours)]
  return (
      f'{peers_report.by_method(runs)}\n\nThe two runs of moon_jax take '
      f'{_span(ours).replace(" to ", " and ")} s per round; {len(between)} '
      'other sides lie between them. Compared with\nZen 5, a round '
      f'takes {here[_LOOP] / there[_LOOP]:.1f} times as long in the PyTorch '
      f'loop (processes), and {slower[0]:.1f} or {slower[1]:.1f} times in\n'
      'moon_jax (two runs).')


def recipe() -> str:
  data = _measured('recipe')
  pairs, to_processes = ([
      x for case in data['cases'].values() for x in case[field]]
      for field in ('ratios', 'ratios_to_processes'))
  return (
      f'{bench.recipe_markdown(data)}\n\n'
      'Before timing, losses and weights of moon_jax and PyTorch agreed to '
      f'{common.bound(max(data["differences"].values()))}. A ratio is the\n'
      'median of '
      f'{len(pairs) // len(data["cases"])} paired ratios; all pairs: '
      f'{_span(pairs)}, to processes {_span(to_processes)}. The load average '
      'before the start was '
      f'{data["load_average_before"]:.1f}.')


def resnets() -> str:
  data = _measured('resnets')
  return (f'{_against_loop("resnets")}\n\n'
          f'Medians of {_least_repeats(data)} rounds; the sides take turns. '
          f'{data["cpu"].replace("(R)", "")}; PyTorch '
          f'{data["versions"]["torch"].partition("+")[0]}. moon_jax compiled '
          'the\nprograms of the rows in ' + ', '.join(
              f'{case["ours"]["compile_seconds"]:.0f}'
              for case in data['cases'].values()) + ' s. After other work, '
          'the load average before the start was '
          f'{data["load_average_before"]:.1f}.')


def vit() -> str:
  """Speed and memory of ViT-tiny beside PyTorch."""
  data = _measured('vit')
  sides = 'ours', 'theirs', 'processes'
  memory = [[name, *(f'{_peak(case[side]) / 1e9:.1f}' for side in sides)]
            for name, case in data['cases'].items()]
  pairs = '; '.join(
      f'{_span(case["ratios"])} and {_span(case["ratios_to_processes"])}'
      for case in data['cases'].values())
  return (f'{_against_loop("vit")}\n\n' + markdown(
      [['peak memory, GB', 'moon_jax', 'PyTorch, two threads',
        'PyTorch, two processes'], *memory])
          + f'\n\nMedians of {_least_repeats(data)} rounds; the sides take '
          f'turns. Ratios of single rounds, by row: {pairs}.\n'
          f'{data["cpu"]}; PyTorch {data["versions"]["torch"]}, JAX '
          f'{data["versions"]["jax"]}. The load average before the start was '
          f'{data["load_average_before"]:.1f}.')


def cached_features() -> str:
  """Seconds with and without cached features."""
  data = _measured('cached_features')
  return markdown([
      ['features', 'seconds to make', 'seconds per round', 'inputs (MB)'],
      *([name, f'{case["seconds_to_make"]:.1f}',
         f'{case["seconds_per_round"]:.3f}', f'{case["input_bytes"] / 1e6:.2f}']
        for name, case in data['cases'].items())]) + (
            '\n\nLargest difference of a weight after '
            f'{len(data["cases"]["cached"]["seconds"])} rounds: '
            f'{data["largest difference of models"]:.1e}; of the test losses: '
            f'{data["difference of test losses"]:.1e}. {data["cpu"]}.')


def where_to_begin() -> str:
  """Accuracies, bytes and seconds by what is trained."""
  return where_lib.table(_measured('where_to_begin'))


def _peak(side):
  return max(repeat['peak_bytes'] for repeat in side['repeats'])


def _least_repeats(data):
  return min(len(case['ratios']) for case in data['cases'].values())


def _against_loop(name):
  data = _measured(name)['cases']
  rate = lambda case, side: bench.rate_text(case[side]['examples_per_second'])
  return markdown([[
      'case', 'moon_jax, examples/s', 'PyTorch, two threads', 'ratio',
      'PyTorch, two processes', 'ratio']] + [
      [name, rate(case, 'ours'), rate(case, 'theirs'), f'{case["ratio"]:.2f}',
       rate(case, 'processes'), f'{case["ratio_to_processes"]:.2f}']
      for name, case in data.items()])


def scaling_short() -> str:
  tables = _measured('scaling')['tables']
  title, points = next(iter(tables.items()))
  return bench.scaling_markdown({title: points})


# The part of an earlier version of benchmarks/gpu.py.
_GPU_MOON_BEFORE = 'speed: moon, 10 lanes'
_NUM_CIFAR10 = 50_000  # training images, or as many of noise


def _gpu_seconds(line):
  """Returns the median round of a part's result, NaN if it has no rounds."""
  rounds = line.get('result', {}).get('ours', {}).get('repeats', ())
  return statistics.median([r['seconds'] for r in rounds] or [float('nan')])


def gpu_short() -> str:
  device, *lines = [line for line in _measured('gpu') if 'result' in line]
  of = lambda part: [line for line in lines if line['part'] == part]
  moon = of(gpu_benchmark.MOON) or of(_GPU_MOON_BEFORE)
  seconds = sorted(f'{_gpu_seconds(line):.2f}' for line in moon)
  trained = moon[0]['result']['ours']['repeats'][0]['num_examples']
  epochs = round(trained / _NUM_CIFAR10)
  golden = of(gpu_benchmark.GOLDEN)[-1]['result']
  how = f', {failed} fail' if (failed := len(golden['failures'])) else ''
  several = (' (medians of three rounds) with two settings of XLA_FLAGS '
             'that are not the default') * (len(seconds) > 1)
  return (
      f'On one {device["result"]["device"]} {golden["passed"]} golden tests '
      f'pass{how}, and a round of MOON (10 clients, '
      f'{"one epoch" if epochs == 1 else f"{epochs} epochs"} of '
      f'{trained // epochs:,} noise images) takes {" or ".join(seconds)} '
      f's{several} ([measurements](experiments/results/README.md#gpu) of '
      f'moon_jax {device["result"]["versions"]["moon_jax"]}).')


def gpu() -> str:
  device, *lines = _measured('gpu')
  versions = ', '.join(
      f'{name} {version}' for name, version in
      device['result']['versions'].items() if name not in ('moon_jax', 'torch'))
  rows = [['part', '`XLA_FLAGS`', 'seconds per round', 'examples/s',
           'compiling, s', 'result']]
  for line in lines:
    result, seconds = line.get('result', {}), _gpu_seconds(line)
    rate, speed = ('', '', ''), result.get('ours')
    if speed:
      rate = (f'{seconds:.3f}', f'{speed["examples_per_second"]:,.0f}',
              f'{speed["compile_seconds"]:.0f}')
    outcome = line.get('error', 'measured')
    if 'passed' in result:
      outcome = f'{result["passed"]} passed, {len(result["failures"])} failed'
    xla = line['xla_flags']
    rows.append([line['part'], f'`{xla}`' if xla else '', *rate, outcome])
  return f'{device["result"]["device"]}; {versions}.\n\n{markdown(rows)}'


def _cross_device_sides():
  data = _measured('cross_device')['sides']
  return [data[side] for side in ('moon_jax', 'pfl_processes')]


def _cross_device_seconds():
  return [statistics.median(map(cross_device_report.seconds_per_round, runs))
          for runs in _cross_device_sides()]


def cross_device() -> str:
  sides = _cross_device_sides()
  ours, theirs = _cross_device_seconds()
  our_memory, their_memory = (
      statistics.median(run['peak_bytes'] for run in runs) / 1e9
      for runs in sides)
  return (
      f'A round took {ours:.2f} s and {our_memory:.1f} GB with moon_jax, and '
      f'{theirs:.2f} s and {their_memory:.1f} GB with pfl-research in two '
      'processes\n(medians of '
      f'{len(sides[0])}; [table]'
      '(../experiments/results/README.md#cross_device)).')


def million_table() -> str:
  data = _measured('million')
  rows = [['case', 'seconds to the end of round 1', 'seconds per round',
           'peak memory, GB', 'state of all clients, GB', 'state on disk, GB',
           'clients with stored state']]
  for name, case in data.items():
    gb = lambda field, case=case: f'{case[field] / 1000:.2f}'
    rows.append([f'`{name}`', f'{case["seconds_to_first_round"]:.0f}',
                 f'{case["seconds_per_round"]:.2f}', gb('peak_megabytes'),
                 gb('state_of_all_megabytes'), gb('state_on_disk_megabytes'),
                 f'{case["clients_trained"]:,}'])
  return markdown(rows)


def sweep() -> str:
  data = _measured('sweep')
  n = len(data['repeats'])
  return (
      f'The sweep is {data["median"]["command_ratio"]:.2f} times as fast as '
      f'the single commands (median of {n} repeats), and\n'
      f'{data["median"]["training_ratio"]:.2f} times without start and '
      'compilation.')


def sweep_table() -> str:
  rows = [['repeat', 'sweep, s', '12 commands, s', 'ratio',
           'training and evaluation alone: sweep, s', '12 commands, s',
           'ratio']]
  for i, repeat in enumerate(_measured('sweep')['repeats'], 1):
    cells = []
    for field in ('command_seconds', 'training_seconds'):
      one, many = (repeat[side][field] for side in ('sweep', 'one_by_one'))
      cells += [one, many, f'{many / one:.2f}']
    rows.append([i, *cells])
  return f'{markdown(rows)}\n\n{sweep()}'


def checkpoint() -> str:
  data = _measured('checkpoint_cost')
  return (
      f'Rounds with a checkpoint of {data["megabytes"]:.0f} MB took '
      f'{data["median_ratio"]:.3f} times as long as rounds without\n'
      f'(median of {len(data["ratios"])} pairs, '
      f'{_span(data["ratios"])})' + (
          ': too noisy to show a cost.'
          if min(data['ratios']) < 1 < max(data['ratios']) else '.'))


def overheads() -> str:
  """What the server and simulated time add to a round of FedAvg."""
  data = _measured('overheads')
  rows = [['method', 'with', 'seconds per round', 'relative', 'pairs',
           'peak memory, GB']]
  for part, title in (('server', 'FedAvg, 100 clients per round'),
                      ('asynchronous', 'FedAvg, 25 of 100 clients'),
                      ('asynchronous_moon', 'MOON, 25 of 100 clients')):
    found = data[part]
    for kind, seconds in found['seconds'].items():
      pairs = [a / b for a, b in zip(seconds, found['seconds']['nothing'])]
      rows.append([
          title, 'baseline' if kind == 'nothing' else kind,
          f'{found["seconds_per_round"][kind]:.2f}',
          f'{found["median_ratios"][kind]:.2f}', _span(pairs),
          f'{found["peak_bytes"][kind] / 1e9:.2f}'])
  return markdown(rows)


def view() -> str:
  data = _measured('view_overhead')
  ratios = '; '.join(
      f'{name} {data["median_ratios"][name]:.3f} ({_span(values)})'
      for name, values in data['paired_ratios'].items())
  return (
      'A round with nothing took '
      f'{data["seconds_per_round"]["nothing"]:.2f} s (median). The view and '
      f'log.txt took {data["view_processor_time_fraction"]:.2%} of that\nin '
      'processor time, the loggers '
      f'{data["logger_time_fraction"]:.2%} '
      f'({1000 * data["logger_seconds_per_round"]:.2f} ms). Medians of the '
      f'paired\nratios of whole rounds: {ratios}; they are too noisy to show '
      'this.')


def plan() -> str:
  data = _measured('plan_check')
  off = lambda field: math.ceil(100 * max(  # "within" must not round down
      abs(1 - case['ratio'][field]) for case in data))
  return (
      f'In {len(data)} cases the measured memory was within '
      f'{off("megabytes")}% of the estimate, and the time within '
      f'{off("seconds")}%.')


def plan_table() -> str:
  rows = [['case', 'planned MB', 'measured', 'planned s per round', 'measured']]
  for case in _measured('plan_check'):
    mb, s = ([case[side][field] for side in ('planned', 'measured')]
             for field in ('megabytes', 'seconds'))
    rows.append([case['case'], *(f'{x:,.0f}' for x in mb),
                 *(f'{x:.2f}' for x in s)])
  return f'{markdown(rows)}\n\n{plan()}'


def lanes() -> str:
  rows = [['network', 'runs', 'side by side', 'lanes', 'kernels per row',
           'temporaries, GB']]
  for case in _measured('lanes'):
    rows.append([*case['case'].split(':'), case['lanes'],
                 case['kernels_per_row'],
                 f'{case["temporary_bytes"] / 1e9:.2f}'])
  return markdown(rows)


def kills() -> str:
  """What was killed, how often, and whether bits agree."""
  rows = [['case', 'kills', 'partial checkpoints', 'rounds', 'equal bits']]
  for name, found in kept.measurements().items():
    if 'kills' not in found:
      continue
    rows.append([name.removeprefix('kills_'), len(found['kills']),
                 found['left half a checkpoint'], found['rounds'],
                 'yes' if found['same'] else 'no'])
  return markdown(rows)


def outputs() -> str:
  """What `train` prints at its end, and the differences that `show` has."""
  summary = kept.runs('quickstart')['moon-seed0'].summary
  lines = compare_lib.differences(compare_lib.of(
      [*kept.runs('breast_cancer').values()], 'test_accuracy')).text(80)
  return '\n'.join(['```text', train.result(summary), *lines, '```'])


def quickstart() -> str:
  found = _of_last_rounds(kept.runs('quickstart').values())
  return ('Test accuracy in percent, mean of the last five rounds:\n'
          f'{stats.mean_and_std(found, 1)} over {len(found)} seeds.')


def breast_cancer() -> str:
  arms = _grouped('breast_cancer', lambda run: run.config.algorithm.name)
  texts = [f'{stats.mean_and_std(_of_last_rounds(arms[name]), 1)} ({name})'
           for name in ('moon', 'fedavg')]
  return (f'Test accuracy in percent, mean of the last five rounds over '
          f'three seeds on one split:\n{", ".join(texts)}.')


def shakespeare() -> str:
  lines = []
  for name in ('moon', 'fedavg'):
    run = kept.runs('shakespeare')[f'{name}-seed0']
    lines.append(f'{name} ' + ', '.join(
        f'{100 * x:.1f}' for x in run.values('test_accuracy')))
  return ('Test accuracy in percent after rounds 5, 10, 15 and 20, one seed:\n'
          + '; '.join(lines) + '.')


def cross_device_expected() -> str:
  sides = _measured('cross_device')['sides']
  return ('Test accuracy in percent after 20 rounds, one run: '
          f'{100 * cross_device_report.accuracy(sides["moon_jax"][0]):.1f}.')


def negatives() -> str:
  rows = [['num_negatives', 'runs', 'test accuracy (%) after the last round']]
  arms = _grouped('sweep_negatives', lambda run: run.config.args(
      'algorithm').get('num_negatives', 1))
  for k, runs in sorted(arms.items()):
    found = [100 * run.values('test_accuracy')[-1] for run in runs]
    rows.append([k, len(found), stats.mean_and_std(found, 1)])
  return markdown(rows)


def robust() -> str:
  found = {(run.config.aggregation.name, run.config.attack.name): run.summary
           for run in kept.runs('robust').values()}
  order = lambda names, known: sorted(set(names), key=known.index)
  rules = order((rule for rule, _ in found), ['average', *kinds.ROBUST])
  attacks = order((attack for _, attack in found),
                  ['none', *kinds.DATA_ATTACKS, *kinds.UPDATE_ATTACKS])
  percent = lambda rule, attack, name: (
      f'{100 * found[rule, attack][name]:.1f}')
  return markdown([
      ['rule', *attacks, 'success of the backdoor'],
      *([rule, *(percent(rule, attack, 'test_accuracy') for attack in attacks),
         percent(rule, 'backdoor', 'backdoor_accuracy')] for rule in rules)])


def _compressor(config):
  """Returns the call of the compressor with its fraction, if it has one."""
  call = config.compress
  if fraction := config.args('compress').get('fraction'):
    call = call.replace(fraction=fraction)
  return str(call)


def _uploaded(run):
  """Returns the MB that a client uploads per round."""
  model = 4 * run.summary['num_parameters']  # that it downloads
  return (run.summary['bytes_per_round'] / run.config.cohort_size()
          - model) / 1e6


def compression() -> str:
  rows = [['--compress', 'kB uploaded per client and round', 'relative to none',
           'test accuracy (%)']]
  runs = sorted(kept.runs('compression').values(), key=_uploaded, reverse=True)
  for run in runs:
    rows.append([
        _compressor(run.config), f'{1000 * _uploaded(run):.1f}',
        f'1 / {_uploaded(runs[0]) / _uploaded(run):.1f}',
        f'{100 * run.summary["test_accuracy"]:.1f}'])
  return markdown(rows)


# FedScale's comparison, https://github.com/SymbioticLab/FedScale/pull/197:
# FEMNIST, ResNet-18, 5 updates per step, concurrency 10, top-5 accuracy.
_FEDSCALE = {'rounds, over-selection 1.4': (100, 27_618, 91.4),
             'FedBuff': (180, 18_913, 92.)}
_TARGET = .4  # test accuracy


def time() -> str:
  to_target = f'simulated s to {_TARGET:.0%}'
  rows = [['server', 'steps', 'updates', 'simulated s', 'relative',
           'test accuracy (%)', to_target, 'relative',
           "FedScale's: steps", 'simulated s', 'relative', 'top-5 (%)']]
  arms = _grouped('time', lambda run: _server(run.config))
  order = ['rounds', 'rounds, over-selection 1.4', 'FedBuff', 'FedAsync']
  end = lambda run: run.lines[-1]['simulated_seconds']
  mean = lambda function, name: statistics.fmean(map(function, arms[name]))

  def timed(function, name):
    return [stats.mean_and_std([function(run) for run in arms[name]], 0),
            f'{mean(function, name) / mean(function, order[1]):.2f}']

  for name in sorted(arms, key=order.index):
    config, published = arms[name][0].config, _FEDSCALE.get(name)
    steps = config.num_rounds
    rows.append([
        name, steps, steps * config.cohort_size(),
        *timed(end, name), stats.mean_and_std(_of_last_rounds(arms[name]), 1),
        *timed(_seconds_to_target, name),
        *((published[0], f'{published[1]:,}',
           f'{published[1] / _FEDSCALE[order[1]][1]:.2f}', published[2])
          if published else '')])
    rows[-1] += [''] * (len(rows[0]) - len(rows[-1]))
  return markdown(rows)


def _server(config):
  return {'fedbuff': 'FedBuff', 'fedasync': 'FedAsync'}.get(
      config.rounds.name, 'rounds, over-selection 1.4'
      if config.args('rounds').get('over_selection', 1) > 1 else 'rounds')


def _seconds_to_target(run):
  return dict(run.series('simulated_seconds'))[run.rounds_to(_TARGET)]


def selection() -> str:
  """Accuracy by how clients are selected."""
  rounds = 50, 100, 150
  rows = [['--cohort', *(f'test accuracy (%), rounds {r - 15} to {r}'
                         for r in rounds)]]
  arms = _grouped('selection', lambda run: str(run.config.cohort))
  for name, runs in sorted(arms.items(), key=lambda arm: (
      arm[0] != 'uniform', arm[0])):
    means = [{run.config.seed: statistics.fmean(
        100 * y for x, y in run.series('test_accuracy') if r - 20 < x <= r)
              for run in runs} for r in rounds]
    if name == 'uniform':
      uniform = means
    higher = [f' (higher in {sum(x > other[s] for s, x in mean.items())} of '
              f'{len(mean)})' if name != 'uniform' else ''
              for mean, other in zip(means, uniform)]
    rows.append([name, *(f'{stats.mean_and_std([*mean.values()], 1)}{suffix}'
                         for mean, suffix in zip(means, higher))])
  return markdown(rows)


def ifca() -> str:
  """Accuracies of IFCA and of one model on rotated MNIST."""
  runs = {str(run.config.topology): run for run in kept.runs('ifca').values()}
  series = {name: dict(run.series('personal_heldout_accuracy'))
            for name, run in runs.items()}
  shared = sorted(set.intersection(*map(set, series.values())))
  return markdown([
      ['--topology', *(f'accuracy (%), round {r}' for r in shared),
       'published, round 300'],
      *([name, *(f'{100 * series[name][r]:.1f}' for r in shared), _IFCA[name]]
        for name in sorted(series))])


# Ghosh et al. 2020, table 1, m = 2,400 clients of n = 100 images.
_IFCA = {'ifca(clusters=4)': '95.05', 'star': '88.65'}


def heterofl() -> str:
  """Accuracies of the widths of HeteroFL by their batch norm."""
  run, = kept.runs('heterofl').values()
  widths = _measured('heterofl')
  names = next(iter(widths.values()))
  return markdown([
      ['width', *(f'{name} (%)' for name in names), "Flower's baseline"],
      *([width.removeprefix('width '), *(
          f'{100 * value:.2f}' for value in accuracies.values()),
         '99.12' if width == 'width 1' else '']
        for width, accuracies in widths.items())]) + (
            f'\n\n{run.lines[-1]["round"]} rounds, one run.')


def epidemic() -> str:
  """Mean accuracy of the nodes by graph."""
  runs = {str(run.config.topology): run
          for run in kept.runs('epidemic').values()}
  series = {name: dict(run.series('test_accuracy'))
            for name, run in runs.items()}
  last = min(max(values) for values in series.values())
  rounds = [r for r in (25, 50, 100, 200, 400, 800) if r <= last]
  spread = {name: dict(run.series('test_accuracy_std'))
            for name, run in runs.items()}
  return markdown([
      ['--topology', *(f'accuracy (%), round {r}' for r in rounds)],
      *([name, *(f'{100 * series[name][r]:.1f} ± {100 * spread[name][r]:.1f}'
                 for r in rounds)] for name in sorted(series, reverse=True))])


_MEANS = {  # other models that are tested: which clients, in words
    'fedavg': [('all', 'mean of the last two')],
    'fedexp': [('all', 'mean of the last two (released code)')],
    'feddyn': [
        ('all', 'mean of the last models of all clients (released code)'),
        ('cohort', 'mean of the clients of a round (released code; weighted '
                   'by examples here)')]}


def tuned_means() -> str:
  """FedAvg, FedExP and FedDyn with other models than in the comparison."""
  betas, last, means = _tuned_means()
  rows = [['method', 'model that is tested',
           *(f'Dirichlet {beta} (%)' for beta in betas)]]
  for method, title in (
      ('fedavg', 'FedAvg'), ('fedexp', 'FedExP'), ('feddyn', 'FedDyn')):
    rows.append([title, 'the last one, as in the comparison', *(
        f'{last[method, beta]:.1f}' for beta in betas)])
    for over, text in _MEANS[method]:
      rows.append([title, text, *(
          f'{means[key]:.1f}' if (key := (method, over, beta)) in means
          else 'not run' for beta in betas)])
  return markdown(rows)


def tuned_means_short() -> str:
  """The same, in a sentence."""
  betas, last, means = _tuned_means()
  shown = lambda *key: f'{means[key]:.1f}%' if key in means else 'not run'
  texts = [
      f'at Dirichlet {beta} FedExP: {shown("fedexp", "all", beta)} instead of '
      f'{last["fedexp", beta]:.1f}%; FedDyn: {shown("feddyn", "all", beta)} '
      f'(all clients) and {shown("feddyn", "cohort", beta)} (clients of the '
      f'round) instead of {last["feddyn", beta]:.1f}%; FedAvg: ' + (
          f'{shown("fedavg", "all", beta)} (last two models) instead of '
          if ('fedavg', 'all', beta) in means else 'without a mean ')
      + f'{last["fedavg", beta]:.1f}%' for beta in betas]
  return '\n'.join(textwrap.wrap(
      'The table tests the model with which clients continue. The released '
      'codes of FedExP and FedDyn test means of models. [With the settings '
      f'chosen above]({_MEANS_PAGE}) these means reach: {"; ".join(texts)}. '
      'We decided on these runs after seeing the results of Dirichlet 0.5. '
      'They were not tuned again or tested for significance.', 119,
      initial_indent='- ', subsequent_indent='  ', break_long_words=False,
      break_on_hyphens=False))


def scaffold_random() -> str:
  """SCAFFOLD of the tuned comparison by the start of its variates."""
  tested = {x.search.name: x.accuracies for x in tuned.kept_results()}
  random = [tuned.endpoint(run, 'test_accuracy')[0] for run in sorted(
      kept.runs('scaffold_random').values(), key=lambda run: run.config.seed)]
  return markdown([
      ['Dirichlet 0.5', 'accuracy (%)'],
      *([name, stats.mean_and_std(values, 1)] for name, values in (
          ('SCAFFOLD, variates start at 0, as in the comparison',
           tested['scaffold-beta0.5']),
          ('SCAFFOLD, variates start at a random network', random),
          ('FedAvg', tested['fedavg-beta0.5'])))])


def fedavg_dirichlet_01() -> str:
  """FedAvg at Dirichlet 0.1 with learning rates that its search ended."""
  runs = sorted(kept.runs('fedavg_dirichlet_01').values(),
                key=lambda run: run.config.learning_rate)
  of = lambda run, part, r: (
      f'{100 * dict(run.series(f"{part}_accuracy"))[r]:.1f}')
  return markdown([
      ['learning rate', 'validation accuracy (%), round 8', 'round 24',
       'round 72', 'test accuracy (%), round 72'],
      *([f'{run.config.learning_rate:g}', *(
          of(run, 'validation', r) for r in (8, 24, 72)), of(run, 'test', 72)]
        for run in runs)])


def _tuned_means():
  """Returns complete Dirichlet parameters, and accuracies in percent."""
  tested = tuned.kept_results()
  betas = [beta for beta in dict.fromkeys(x.search.beta for x in tested)
           if (family := tuned.tests(tested, beta))
           and family[0].result.num_learned]
  last = {(x.search.method, x.search.beta): statistics.fmean(x.accuracies)
          for x in tested if x.accuracies}
  means: dict[Any, list[float]] = {}
  for name in 'fedexp_mean', 'feddyn_mean':
    for run in kept.runs(name).values():
      algorithm = run.config.algorithm
      method = algorithm.name.rpartition(':')[2].removesuffix('_mean')
      means.setdefault((
          method, dict(algorithm.arguments).get('over', 'all'),
          f'{run.config.args("partition")["beta"]:g}'), []).append(
              tuned.endpoint(run, 'test_accuracy')[0])
  return betas, last, {key: statistics.fmean(x) for key, x in means.items()}


def many_models() -> str:
  """Time and memory of rounds with many models."""
  measured = _measured('many_models')
  cases = {name: case for name, case in measured.items()
           if isinstance(case, dict) and 'models' in case}
  base = cases['star']['seconds_per_round']
  return markdown([
      ['case', 'models', 'ms per round', 'relative to star', 'peak memory, MB'],
      *([name, case['models'], f'{1000 * case["seconds_per_round"]:.0f}',
         f'{case["seconds_per_round"] / base:.1f}', case['peak_megabytes']]
        for name, case in cases.items())])


def leakage() -> str:
  """The gap between training and test accuracy by noise and round."""
  rounds = 20, 40, 60
  rows = [['--privacy.clip', '--privacy.noise_multiplier', 'epsilon', 'runs', *(
      f'{what}, round {r}' for r in rounds
      for what in ('test accuracy (%)', 'difference'))]]
  arms = _grouped('privacy', lambda run: tuple(
      run.config.args('privacy').get(name, 0.)
      for name in ('noise_multiplier', 'clip')))
  for (noise, clip), made in sorted(arms.items()):
    runs = [run for run in made if run.state.kind == 'finished']
    accuracy = lambda run, r: 100 * dict(run.series('test_accuracy')).get(
        r, CHANCE / 100)  # of a run that diverged before round r
    epsilon, cells = runs[0].summary.get('epsilon'), []
    for r in rounds:
      gaps = [100 * (dict(run.series('global_train_accuracy'))[r]
                     - dict(run.series('test_accuracy'))[r])
              for run in made if r in dict(run.series('test_accuracy'))]
      cells += [
          stats.mean_and_std([accuracy(run, r) for run in made], 1),
          stats.mean_and_std(gaps, 1)
          + f' ({len(gaps)} runs)' * (len(gaps) < len(made))]
    rows.append([
        f'{clip:g}' if clip else 'none', f'{noise:g}',
        f'{epsilon:,.0f}' if epsilon else '∞',
        f'{len(made)}' + (f' ({len(made) - len(runs)} diverged)' if (
            len(runs) < len(made)) else ''), *cells])
  return markdown(rows)


BLOCKS: dict[str, Callable[[], str]] = {  # that are no function's name
    'recipe_short': lambda: _against_loop('recipe'),
    'scaling': lambda: bench.scaling_markdown(
        _measured('scaling')['tables']),
    'peers': lambda: peers_report.by_method(
        _measured('peers')['runs']),
    'growth': lambda: peers_report.by_clients(
        _measured('peers_growth')['runs']),
    'peers_parts': lambda: peers_report.by_part(
        _measured('peers_zen5')['runs']),
    'blazefl_own': lambda: blazefl_own.markdown(_measured('blazefl_own')),
    'blazefl_own_zen1': lambda: blazefl_own.markdown(
        _measured('blazefl_own_zen1')),
    'cross_device_table': lambda: cross_device_report.markdown(
        _measured('cross_device')),
    'kernels': lambda: kernel_counts.table(
        _measured('kernel_counts')).rstrip(),
    'tuned_comparison': tuned.report,
    'tuned_short': tuned.summary,
    'tuned_moon': tuned.moon,
    'full': full_report.everything,
    'verdicts': full_report.summary}


def main() -> None:
  full_report.draw_all()
  for document in DOCUMENTS:
    document.write_text(rewritten(document), encoding='utf-8')


if __name__ == '__main__':
  main()
