"""Measures what checkpoints and loggers add to a round.

python -m benchmarks.overheads --data_dir=DIR --out=DIR

Trains MOON on CIFAR-10 with 10 clients and one local epoch: with nothing, with
a checkpoint after each round, and with the loggers csv and tensorboard. Each
run is a process of its own, and the kinds of runs alternate. A round lasts from
the end of the round before it to its own end, with training and evaluation.
"""

import dataclasses
import statistics
import tempfile
import time

from benchmarks import common
from moon_jax.config import Config

_CONFIG = Config(dataset='cifar10', algorithm='moon', local_epochs=1,
                 num_rounds=6, checkpoint_every=0)
_KINDS = {'nothing': {}, 'checkpoints': {'checkpoint_every': 1},
          'loggers': {'loggers': 'csv,tensorboard'}}


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--data_dir', required=True,
                      help='directory that contains CIFAR-10')
  parser.add_argument('--repeats', type=int, default=5,
                      help='number of runs of each kind (default: 5)')
  args = parser.parse_args()
  config = dataclasses.replace(_CONFIG, data_dir=args.data_dir)
  common.write(args.out, 'overheads', common.describe('overheads') | measure(
      config, args.repeats))


def measure(config: Config, repeats: int) -> dict[str, object]:
  """Returns seconds per round of each kind, and their ratios to nothing."""
  seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
  for repeat in range(repeats):
    for kind in list(_KINDS)[::-1 if repeat % 2 else 1]:
      seconds[kind].append(common.run(
          seconds_per_round, dataclasses.replace(config, **_KINDS[kind])))
  return {
      'run': config.command(),
      'seconds_per_round': {
          kind: statistics.median(values) for kind, values in seconds.items()},
      'median_ratios': {
          kind: statistics.median(
              a / b for a, b in zip(seconds[kind], seconds['nothing']))
          for kind in _KINDS},
      'seconds': seconds}


def seconds_per_round(config: Config) -> float:
  """Runs a configuration; returns the median duration of a round.

  The first round is left out: it waits for the program and has no negatives.
  """
  import moon_jax as mj

  ends: list[float] = []
  with tempfile.TemporaryDirectory() as workdir:
    mj.run(dataclasses.replace(config, workdir=workdir),
           callbacks=[lambda *_: ends.append(time.perf_counter())])
  return statistics.median(b - a for a, b in zip(ends, ends[1:]))


if __name__ == '__main__':
  main()
