"""Measures what a checkpoint after each round costs.

python -m benchmarks.checkpoint_cost --data_dir=DIR --out=DIR

MOON on CIFAR-10, 10 clients, one local epoch: rounds with checkpoints and
without in turn, in one process, a few of each at a time, so that a checkpoint
written while the next round trains is paid for by that round. A round is the
whole of it: training, evaluation, its line of metrics, its checkpoint.
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
_AT_ONCE = 4  # rounds of a kind


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--data_dir', required=True)
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--pairs', type=int, default=5)
  args = parser.parse_args()
  cpu_devices.share()
  found = measure(dataclasses.replace(CONFIG, data_dir=args.data_dir),
                  args.pairs)
  text = json.dumps(found, indent=1)
  print(text)
  args.out.mkdir(parents=True, exist_ok=True)
  (args.out / 'checkpoint_cost.json').write_text(text + '\n')


def measure(config: Config, pairs: int) -> dict[str, object]:
  """Seconds of a round in each block of rounds, and their ratio."""
  from moon_jax.data import sources
  from moon_jax.rundir.checkpoint import Checkpoints
  from moon_jax.rundir.metrics_log import MetricsLog
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  config = dataclasses.replace(config, num_rounds=(2 * pairs + 1) * _AT_ONCE)
  dataset = sources.load(config.dataset, config.data_dir)
  simulation = Simulation(build.federation(config, dataset))
  simulation.compile()
  with tempfile.TemporaryDirectory() as name:
    directory = pathlib.Path(name)
    log = MetricsLog(directory / 'metrics.jsonl')
    log.lock()
    log.cut(None)

    checkpoints = Checkpoints(directory / 'checkpoints', config)
    checkpoints.open()

    def block(is_saved):
      start = time.perf_counter()
      for _ in range(_AT_ONCE):
        record = simulation.run_round()
        log.append({'round': simulation.rounds_done, **record.metrics,
                    **simulation.evaluate()})
        if is_saved:
          checkpoints.save(simulation.state_on_host(), {'metrics': log.mark()})
      checkpoints.wait()
      return (time.perf_counter() - start) / _AT_ONCE

    block(True)  # the first is another kind of round: no negatives yet
    saved, unsaved = [], []
    for i in range(pairs):
      for is_saved in (True, False) if i % 2 else (False, True):
        (saved if is_saved else unsaved).append(block(is_saved))
        print(is_saved, (saved if is_saved else unsaved)[-1], file=sys.stderr,
              flush=True)
    checkpoints.close()
    state_bytes = simulation.client_bytes + 4 * simulation.num_parameters
  ratios = [one / other for one, other in zip(saved, unsaved)]
  return {
      'command': f'python -m benchmarks.checkpoint_cost --pairs={pairs}',
      'run': config.command(), 'megabytes': state_bytes / 1e6,
      'seconds_with': saved, 'seconds_without': unsaved,
      'median_with': statistics.median(saved),
      'median_without': statistics.median(unsaved),
      'ratios': ratios, 'median_ratio': statistics.median(ratios)}


if __name__ == '__main__':
  main()
