"""Measures the cost of the terminal view and of log.txt.

python -m benchmarks.view_overhead --data_dir=DIR --out=DIR

Trains FedAvg on CIFAR-10 with 10 clients and one local epoch, on a
pseudo-terminal of 140 columns. Blocks of rounds with and without the view
alternate in one process. Because the times of rounds are noisy, the processor
time of the view's threads and calls is measured, too. The results are fractions
of the time of a round without the view.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import statistics
import struct
import tempfile
import termios
import threading
import time

from moon_jax.config import Config
from moon_jax.distributed import cpu_devices
from moon_jax.view import terminal
from moon_jax.view.progress import Progress

CONFIG = Config(dataset='cifar10', algorithm='fedavg', local_epochs=1)
_BLOCK_ROUNDS = 3


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
  results = measure(args.data_dir, args.pairs)
  text = json.dumps(results, indent=1)
  print(text)
  args.out.mkdir(parents=True, exist_ok=True)
  (args.out / 'view_overhead.json').write_text(text + '\n')


@contextlib.contextmanager
def pseudo_terminal(columns: int = 140, rows: int = 40):
  """A context in which stderr is a terminal whose output is discarded."""
  master, slave = os.openpty()
  fcntl.ioctl(slave, termios.TIOCSWINSZ,
              struct.pack('HHHH', rows, columns, 0, 0))
  saved, term = os.dup(2), os.environ.get('TERM')
  os.environ['TERM'] = 'xterm-256color'
  os.dup2(slave, 2)

  def drain():
    with contextlib.suppress(OSError):
      while os.read(master, 65536):
        pass

  threading.Thread(target=drain, daemon=True).start()
  try:
    yield
  finally:
    os.dup2(saved, 2)
    if term is None:
      del os.environ['TERM']
    else:
      os.environ['TERM'] = term


class _Clock:
  """Sums the processor time of the calls of a function, over all threads."""

  def __init__(self):
    self.seconds = 0.

  def timed(self, function):
    def call(*args, **kwargs):
      start = time.thread_time()
      try:
        return function(*args, **kwargs)
      finally:
        self.seconds += time.thread_time() - start
    return call


def measure(data_dir: str, pairs: int) -> dict[str, object]:
  """Returns seconds per round with and without the view, and its own time."""
  from moon_jax.data import sources
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  dataset = sources.load('cifar10', data_dir)
  simulation = Simulation(build.federation(CONFIG, dataset))
  simulation.compile()
  clock = _Clock()
  seconds: dict[str, list[float]] = {'without': [], 'with': []}
  with tempfile.TemporaryDirectory() as name:
    path = pathlib.Path(name) / 'log.txt'
    _block(simulation, None, path, clock)  # warms up
    shown = 0.
    for pair in range(pairs):
      arms = ['without', 'with']
      for arm in arms if pair % 2 else arms[::-1]:
        if arm == 'without':
          seconds[arm].append(_block(simulation, None, path, clock))
          continue
        original = terminal.Terminal._paint
        terminal.Terminal._paint = clock.timed(original)
        start = time.perf_counter()
        with pseudo_terminal(), Progress('cifar10, fedavg') as progress:
          seconds[arm].append(_block(simulation, progress, path, clock))
        shown += time.perf_counter() - start
        terminal.Terminal._paint = original
  ratios = [a / b for a, b in zip(seconds['with'], seconds['without'])]
  return {
      'seconds_per_round': {
          arm: statistics.median(values) for arm, values in seconds.items()},
      'paired_ratios': ratios,
      'median_ratio': statistics.median(ratios),
      'processor_time_fraction': clock.seconds / shown,
  }


def _block(simulation, progress, path, clock):
  """Trains some rounds; returns the seconds of one."""
  if progress is not None:
    progress.logs[0].open(path)
    progress.training(1000, simulation.rounds_done, ())
  start = time.perf_counter()
  for _ in range(_BLOCK_ROUNDS):
    if progress is None:
      _round(simulation)
      continue
    with progress.busy('training'):
      line = _round(simulation)
    clock.timed(progress.rounds)([line], .93)
    clock.timed(progress.logs[0].write)('round 3/1000  train loss 2.3')
  return (time.perf_counter() - start) / _BLOCK_ROUNDS


def _round(simulation):
  start = time.perf_counter()
  record = simulation.run_round()
  line = simulation.evaluate() | record.metrics
  return line | {
      'round': simulation.rounds_done, 'seconds': time.perf_counter() - start,
      'examples_per_second': record.num_examples / record.seconds}


if __name__ == '__main__':
  main()
