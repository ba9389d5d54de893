"""Measures moon_jax and BlazeFL on BlazeFL's own benchmark, in one run.

python -m benchmarks.blazefl_own --data_dir=DIR --python=PYTHON \\
    --sources=SOURCES --out=OUT

The settings are those of https://github.com/kitsuyaazuma/blazefl/tree/6dcb310,
benchmarks/blazefl-case/main.py: FedAvg on CIFAR-10, 100 clients with two of 200
shards each, all in each of 5 rounds of 5 epochs, batches of 50, SGD with rate
0.1, a CNN of two convolutions (62,006 parameters), crops and flips, and an
evaluation after each round, which counts. SOURCES/blazefl is a clone at
`_COMMIT`, the release on PyPI, whose quickstart has the classes of that
benchmark; PYTHON has it and torchvision. Both sides train the same clients.
Crops pad with zeros in BlazeFL and by reflection in moon_jax.

Every second pass has the opposite order. OUT/blazefl_own.json is written after
each run.
"""

import pathlib
import runpy
import statistics
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import common, sides
from benchmarks.peers import __main__ as peers
from benchmarks.peers import report
from moon_jax.config import Config
from moon_jax.simulation import build

_COMMIT = 'a63fb0b'  # v2.0.3
_EXAMPLE = 'examples/quickstart-fedavg'
_SEED, _NUM_CLIENTS, _NUM_SHARDS = 42, 100, 200
_PROGRAM = 'blazefl_own_side.py', 'blazefl'
SIDES = {
    'moon_jax': peers.Side(),
    'BlazeFL': peers.Side(*_PROGRAM),
    'BlazeFL, processes': peers.Side(*_PROGRAM, is_parallel=True),
    'BlazeFL, threads': peers.Side(
        *_PROGRAM, is_parallel=True, is_threaded=True)}


def main() -> None:
  parser = common.parser(__doc__)
  add = parser.add_argument
  peers.add_flags(parser, SIDES)
  add('--data_dir', required=True, help='directory that contains CIFAR-10')
  add('--passes', type=int, default=2, help='runs of each side')
  add('--num_rounds', type=int, default=5, help='rounds of a run')
  add('--local_epochs', type=int, default=5, help='local epochs per round')
  args = parser.parse_args()
  peers.checked('blazefl', args, _COMMIT)
  names = args.side or [*SIDES]
  results = common.describe('blazefl_own') | {'blazefl': _COMMIT, 'runs': []}
  config = Config(
      dataset='cifar10', data_dir=args.data_dir, algorithm='fedavg',
      num_clients=_NUM_CLIENTS, local_epochs=args.local_epochs,
      num_rounds=args.num_rounds, batch_size=50, learning_rate=.1,
      optimizer='sgd(momentum=0,weight_decay=0)',
      model='simple_cnn(projection_dim=None)')
  with tempfile.TemporaryDirectory() as directory:
    inputs = pathlib.Path(directory) / 'clients.npy'
    common.run(write_clients, config.to_dict(), args.sources, inputs)
    for number in range(args.passes):
      for name in names[::-1 if number % 2 else 1]:
        run, _ = peers.observed(lambda name=name: common.run(
            train, config.to_dict(), inputs) if name == 'moon_jax' else
            peers.run_peer(SIDES[name], peers.task_of(config) | {
                'data_dir': args.data_dir, 'seed': _SEED,
                'num_clients': _NUM_CLIENTS, 'num_shards': _NUM_SHARDS,
                'local_epochs': args.local_epochs}, args, inputs))
        results['runs'].append({'side': name, 'pass': number} | run)
        common.write(args.out, 'blazefl_own', results, markdown(results))


def write_clients(fields: dict[str, Any], sources: pathlib.Path,
                  path: pathlib.Path) -> None:
  """Writes the clients' examples [C, N], as BlazeFL's function splits them."""
  _, dataset, _ = sides.inputs({'config': fields})
  split = runpy.run_path(str(
      sources / 'blazefl' / _EXAMPLE / 'dataset' / 'functional.py'))
  clients = split['shards_partition'](
      dataset.train_labels, _NUM_CLIENTS, _NUM_SHARDS, _SEED)
  np.save(path, np.stack([clients[i] for i in range(_NUM_CLIENTS)]))


def train(fields: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
  """Trains moon_jax; compilation is measured apart from the rounds."""
  sides.start_jax()
  from moon_jax.simulation.simulation import Simulation

  config, dataset, _ = sides.inputs({'config': fields})
  simulation = Simulation(build.federation(
      config, dataset._replace(mean=(.5,) * 3, std=(.5,) * 3),
      [*np.load(path)], [[*range(config.num_clients)]] * config.num_rounds))
  start = time.perf_counter()
  simulation.compile()
  simulation.evaluate()
  compile_seconds = time.perf_counter() - start
  seconds, accuracies = [], []
  for _ in range(config.num_rounds):
    start = time.perf_counter()
    simulation.run_round()
    accuracies.append(float(simulation.evaluate()['test_accuracy']))
    seconds.append(time.perf_counter() - start)
  return {'round_seconds': seconds, 'accuracies': accuracies,
          'compile_seconds': compile_seconds, 'versions': common.versions(),
          'num_parameters': simulation.num_parameters}


def multiple(results: dict[str, Any], side: str) -> float:
  """Returns a side's seconds over those of moon_jax, without compiling."""
  theirs, ours = (statistics.fmean(_seconds(_rows(results)[name]))
                  for name in (side, 'moon_jax'))
  return theirs / ours


def markdown(results: dict[str, Any]) -> str:
  """Returns a table: a row per side, the fastest first.

  Seconds are those of all rounds: their mean, and range if there are several
  runs. The second ratio counts moon_jax's compilation.
  """
  rows = _rows(results)
  mean = {side: statistics.fmean(_seconds(runs))
          for side, runs in rows.items()}
  compiling = {side: statistics.fmean(
      run.get('compile_seconds', 0.) for run in runs)
      for side, runs in rows.items()}
  total = {side: mean[side] + compiling[side] for side in rows}
  ratio = lambda seconds, side: (
      f'{seconds[side] / seconds["moon_jax"]:.2f}'
      if 'moon_jax' in rows else '')
  return common.table({
      'side': lambda side: side,
      f'{len(results["runs"][0]["round_seconds"])} rounds, s': lambda side: (
          report.spread(_seconds(rows[side]))),
      'x': lambda side: ratio(mean, side),
      'compiling, s': lambda side: f'{compiling[side]:.1f}',
      'x, with compiling': lambda side: ratio(total, side),
      'GB': lambda side: (
          f'{max(run["peak_bytes"] for run in rows[side]) / 1e9:.1f}'),
      'test accuracy': lambda side: ', '.join(
          f'{run["accuracies"][-1]:.3f}' for run in rows[side]),
      'other cores; load before': lambda side: ', '.join(
          f'{run["other_cores"]:.2f}; {run["load_average_before"]:.1f}'
          for run in rows[side])}, sorted(rows, key=mean.get))


def _rows(results):
  """Returns the runs of each side."""
  rows: dict[str, list[dict]] = {}
  for run in results['runs']:
    rows.setdefault(run['side'], []).append(run)
  return rows


def _seconds(runs):
  return [sum(run['round_seconds']) for run in runs]


if __name__ == '__main__':
  main()
