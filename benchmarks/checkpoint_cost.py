"""Measures the cost of a checkpoint after each round.

python -m benchmarks.checkpoint_cost --data_dir=DIR --out=DIR

Trains MOON on CIFAR-10 with 10 clients and one local epoch. Blocks of rounds
with and without checkpoints alternate in one process. A block has several
rounds, because a checkpoint is written while the next round trains and slows
that round down. The time of a round includes training, evaluation, its line of
metrics and its checkpoint.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
import time

from moon_jax.config import Config
from moon_jax.distributed import cpu_devices

CONFIG = Config(dataset='cifar10', algorithm='moon', local_epochs=1,
                checkpoint_every=1)
_BLOCK_ROUNDS = 4


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--data_dir', required=True,
                      help='directory that contains CIFAR-10')
  parser.add_argument('--out', type=pathlib.Path, required=True,
                      help='output directory')
  parser.add_argument('--pairs', type=int, default=5,
                      help='number of pairs of blocks (default: 5)')
  args = parser.parse_args()
  cpu_devices.share()
  results = measure(dataclasses.replace(CONFIG, data_dir=args.data_dir),
                    args.pairs)
  text = json.dumps(results, indent=1)
  print(text)
  args.out.mkdir(parents=True, exist_ok=True)
  (args.out / 'checkpoint_cost.json').write_text(text + '\n')


def measure(config: Config, pairs: int) -> dict[str, object]:
  """Returns the seconds per round of each block, and the paired ratios."""
  from moon_jax.data import sources
  from moon_jax.rundir.checkpoint import Checkpoints
  from moon_jax.rundir.metrics_file import MetricsFile
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  config = dataclasses.replace(
      config, num_rounds=(2 * pairs + 1) * _BLOCK_ROUNDS)
  dataset = sources.load(config.dataset, config.data_dir)
  simulation = Simulation(build.federation(config, dataset))
  simulation.compile()
  with tempfile.TemporaryDirectory() as name:
    directory = pathlib.Path(name)
    log = MetricsFile(directory / 'metrics.jsonl')
    log.lock()
    log.cut(None)

    checkpoints = Checkpoints(directory / 'checkpoints', config)
    checkpoints.open()

    def run_block(is_saved):
      start = time.perf_counter()
      for _ in range(_BLOCK_ROUNDS):
        record = simulation.run_round()
        log.append({'round': simulation.rounds_done, **record.metrics,
                    **simulation.evaluate()})
        if is_saved:
          checkpoints.save(simulation.state_on_host(), {'metrics': log.mark()})
      checkpoints.wait()
      return (time.perf_counter() - start) / _BLOCK_ROUNDS

    run_block(True)  # not timed: the first round has no negatives
    saved, unsaved = [], []
    for i in range(pairs):
      for is_saved in (True, False) if i % 2 else (False, True):
        (saved if is_saved else unsaved).append(
            run_block(is_saved))
        print(is_saved, (saved if is_saved else unsaved)[-1], file=sys.stderr,
              flush=True)
    checkpoints.close()
    state_bytes = simulation.client_bytes + 4 * simulation.num_parameters
  ratios = [with_ / without for with_, without in zip(saved, unsaved)]
  return {
      'command': f'python -m benchmarks.checkpoint_cost --pairs={pairs}',
      'run': config.command(), 'megabytes': state_bytes / 1e6,
      'seconds_with': saved, 'seconds_without': unsaved,
      'median_with': statistics.median(saved),
      'median_without': statistics.median(unsaved),
      'ratios': ratios, 'median_ratio': statistics.median(ratios)}


if __name__ == '__main__':
  main()
