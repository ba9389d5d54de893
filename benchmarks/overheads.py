"""Measures what parts of a run add to a round.

python -m benchmarks.overheads --data_dir=DIR --out=DIR

Trains on CIFAR-10 for one local epoch, in parts:

- "recorder": MOON with 10 clients: with nothing, with a checkpoint after each
  round, and with the loggers csv and tensorboard;
- "server": FedAvg with 100 clients in each round: with nothing, with robust
  rules, with compression, and with simulated time;
- "asynchronous" and "asynchronous_moon": FedAvg and MOON, 25 of 100 clients: in
  rounds, and in server steps of as many updates.

Each run is a process of its own, and the kinds of runs alternate. A round lasts
from the end of the round before it to its own end, with training and
evaluation.
"""

import dataclasses
import statistics
import tempfile
import time
from typing import Any

from benchmarks import common, sides
from moon_jax.config import Config

_MOON = Config(dataset='cifar10', algorithm='moon', local_epochs=1,
               num_rounds=6, checkpoint_every=0)
_FEDAVG = dataclasses.replace(_MOON, algorithm='fedavg', num_clients=100)
_QUARTER = dataclasses.replace(  # equal work, whoever trains
    _FEDAVG, participation=.25, partition='iid', num_rounds=12)
_STEPS = {'clock': 'lognormal', 'participation': 1.,
          'rounds': 'fedbuff(concurrency=50, buffer_size=25)'}
# Part -> a configuration, and what is changed in each kind of run.
_PARTS = {
    'recorder': (_MOON, {'nothing': {}, 'checkpoints': {'checkpoint_every': 1},
                         'loggers': {'loggers': 'csv,tensorboard'}}),
    'server': (_FEDAVG, {
        'nothing': {}, 'median': {'aggregation': 'median'},
        'multi_krum': {'aggregation': 'multi_krum'},
        'qsgd': {'compress': 'qsgd'}, 'clock': {'clock': 'lognormal'}}),
    'asynchronous': (_QUARTER, {'nothing': {}, 'fedbuff': _STEPS}),
    'asynchronous_moon': (dataclasses.replace(_QUARTER, algorithm='moon'), {
        'nothing': {}, 'fedbuff': _STEPS})}


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--data_dir', required=True,
                      help='directory that contains CIFAR-10')
  parser.add_argument('--repeats', type=int, default=5,
                      help='number of runs of each kind (default: 5)')
  parser.add_argument('--part', action='append', choices=_PARTS,
                      help='what to measure; may repeat (default: recorder)')
  args = parser.parse_args()
  common.write(args.out, 'overheads', common.describe('overheads') | {
      part: measure(part, args.repeats, data_dir=args.data_dir)
      for part in args.part or ['recorder']})


def measure(part: str, repeats: int, **changes: Any) -> dict[str, object]:
  """Returns seconds per round of each kind, and their ratios to nothing.

  `changes` are fields of all configurations.
  """
  config, kinds = _PARTS[part]
  config = dataclasses.replace(config, **changes)
  found: dict[str, list[tuple[float, int]]] = {kind: [] for kind in kinds}
  for repeat in range(repeats):
    for kind in list(kinds)[::-1 if repeat % 2 else 1]:
      found[kind].append(common.run(
          cost, dataclasses.replace(config, **kinds[kind])))
  seconds = {kind: [run[0] for run in runs] for kind, runs in found.items()}
  return {
      'run': config.command(),
      'seconds_per_round': {
          kind: statistics.median(values) for kind, values in seconds.items()},
      'median_ratios': {
          kind: statistics.median(
              a / b for a, b in zip(seconds[kind], seconds['nothing']))
          for kind in kinds},
      'peak_bytes': {kind: max(run[1] for run in runs)
                     for kind, runs in found.items()},
      'seconds': seconds}


def cost(config: Config) -> tuple[float, int]:
  """Runs a configuration; returns the median duration of a round, and memory.

  Memory is the peak of the process, in bytes. The first round is left out: it
  waits for the program and has no negatives.
  """
  import moon_jax as mj

  ends: list[float] = []
  with tempfile.TemporaryDirectory() as workdir:
    mj.run(dataclasses.replace(config, workdir=workdir),
           callbacks=[lambda *_: ends.append(time.perf_counter())])
  return (statistics.median(b - a for a, b in zip(ends, ends[1:])),
          sides.peak_bytes())


if __name__ == '__main__':
  main()
