"""Measures the cost of the terminal view, of log.txt and of loggers.

python -m benchmarks.view_overhead --data_dir=DIR --out=DIR

Trains FedAvg on CIFAR-10 with 10 clients and one local epoch, on a
pseudo-terminal of 140 columns. Blocks of rounds with nothing, with the view
and log.txt, and with the loggers csv and tensorboard alternate in one process.
Because the times of rounds are noisy, the processor time of the view's threads
and calls, and the time of the calls of the loggers, are measured, too. The
results are fractions of the time of a round with nothing.
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
from moon_jax.loggers import CSV
from moon_jax.loggers import TensorBoard
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
  """Sums the time of the calls of a function, over all threads."""

  def __init__(self, now=time.thread_time):
    self.seconds, self._now = 0., now

  def timed(self, function):
    def call(*args, **kwargs):
      start = self._now()
      try:
        return function(*args, **kwargs)
      finally:
        self.seconds += self._now() - start
    return call


def measure(data_dir: str, pairs: int) -> dict[str, object]:
  """Returns seconds per round of each arm, and the time of what it adds."""
  from moon_jax.data import sources
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  dataset = sources.load('cifar10', data_dir)
  simulation = Simulation(build.federation(CONFIG, dataset))
  simulation.compile()
  clock, logger_clock = _Clock(), _Clock(time.perf_counter)
  seconds: dict[str, list[float]] = {'nothing': [], 'view': [], 'loggers': []}
  with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
    directory = pathlib.Path(name)
    loggers = [stack.enter_context(logger) for logger in (
        CSV(directory / 'metrics.csv'), TensorBoard(directory))]
    log = logger_clock.timed(lambda line: [logger(line) for logger in loggers])
    _block(simulation, log)  # warms up
    shown = logger_clock.seconds = 0.
    for pair in range(pairs):
      arms = list(seconds)
      for arm in arms if pair % 2 else arms[::-1]:
        if arm == 'nothing':
          seconds[arm].append(_block(simulation))
        elif arm == 'loggers':
          seconds[arm].append(_block(simulation, log))
        else:
          start = time.perf_counter()
          seconds[arm].append(_with_view(
              simulation, directory / 'log.txt', clock))
          shown += time.perf_counter() - start
  ratios = {arm: [a / b for a, b in zip(values, seconds['nothing'])]
            for arm, values in seconds.items() if arm != 'nothing'}
  medians = {arm: statistics.median(values) for arm, values in seconds.items()}
  per_round = logger_clock.seconds / (pairs * _BLOCK_ROUNDS)
  return {
      'seconds_per_round': medians,
      'paired_ratios': ratios,
      'median_ratios': {
          arm: statistics.median(values) for arm, values in ratios.items()},
      'view_processor_time_fraction': clock.seconds / shown,
      'logger_seconds_per_round': per_round,
      'logger_time_fraction': per_round / medians['nothing'],
  }


def _with_view(simulation, path, clock):
  """Trains some rounds below the view, and logs them to a file."""
  original = terminal.Terminal._paint
  terminal.Terminal._paint = clock.timed(original)
  try:
    with pseudo_terminal(), Progress('cifar10, fedavg') as progress:
      progress.logs[0].open(path)
      progress.training(1000, simulation.rounds_done, ())

      def show(line):
        clock.timed(progress.rounds)([line], .93)
        clock.timed(progress.logs[0].write)('round 3/1000  train loss 2.3')

      return _block(simulation, show, lambda: progress.busy('training'))
  finally:
    terminal.Terminal._paint = original


def _block(simulation, after_round=lambda line: None,
           around=contextlib.nullcontext):
  """Trains some rounds; returns the seconds of one."""
  start = time.perf_counter()
  for _ in range(_BLOCK_ROUNDS):
    with around():
      line = _round(simulation)
    after_round(line)
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
