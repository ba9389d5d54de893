"""Measures what checkpoints, the terminal view and loggers add to a round.

python -m benchmarks.overheads --data_dir=DIR --out=DIR

Trains on CIFAR-10 with 10 clients and one local epoch. Blocks of rounds with
nothing, with a checkpoint after each round, with the terminal view (on a
pseudo-terminal of 140 columns) and log.txt, and with the loggers csv and
tensorboard alternate in one process. A block has several rounds, because a
checkpoint is written while the next round trains. A round includes training and
evaluation. Because the times of rounds are noisy, the processor time of the
view and the time of the calls of the loggers are measured, too.
"""

import contextlib
import dataclasses
import os
import pathlib
import statistics
import tempfile
import termios
import threading
import time
from unittest import mock

from benchmarks import common
from moon_jax.config import Config
from moon_jax.distributed import host

CONFIG = Config(dataset='cifar10', algorithm='moon', local_epochs=1,
                checkpoint_every=1)
_BLOCK_ROUNDS = 4
_ARMS = 'nothing', 'checkpoints', 'view', 'loggers'


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--data_dir', required=True,
                      help='directory that contains CIFAR-10')
  parser.add_argument('--repeats', type=int, default=5,
                      help='number of blocks of each kind (default: 5)')
  args = parser.parse_args()
  host.share_cores()
  common.write(args.out, 'overheads', common.describe('overheads') | measure(
      dataclasses.replace(CONFIG, data_dir=args.data_dir), args.repeats))


@contextlib.contextmanager
def pseudo_terminal(columns: int = 140, rows: int = 40):
  """A context in which stderr is a terminal whose output is discarded."""
  master, slave = os.openpty()
  termios.tcsetwinsize(slave, (rows, columns))
  saved = os.dup(2)
  os.dup2(slave, 2)

  def drain():
    with contextlib.suppress(OSError):
      while os.read(master, 65536):
        pass

  threading.Thread(target=drain, daemon=True).start()
  try:
    with mock.patch.dict(os.environ, TERM='xterm-256color'):
      yield
  finally:
    os.dup2(saved, 2)


class _Clock:
  """Sums the time of the calls of functions, over all threads."""

  def __init__(self, now):
    self.seconds, self._now = 0., now

  def timed(self, function):
    def call(*args, **kwargs):
      start = self._now()
      try:
        return function(*args, **kwargs)
      finally:
        self.seconds += self._now() - start
    return call


def measure(config: Config, repeats: int) -> dict[str, object]:
  """Returns seconds per round of each arm, their ratios to nothing, and the
  time that the view and the loggers themselves take."""
  from rich.live import Live

  from moon_jax.data import sources
  from moon_jax.loggers import CSV, TensorBoard
  from moon_jax.rundir.checkpoint import Checkpoints
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation
  from moon_jax.view.progress import Progress

  config = dataclasses.replace(
      config, num_rounds=(1 + len(_ARMS) * repeats) * _BLOCK_ROUNDS)
  simulation = Simulation(build.federation(
      config, sources.load(config.dataset, config.data_dir)))
  simulation.compile()
  view_clock, logger_clock = _Clock(time.thread_time), _Clock(time.perf_counter)
  with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
    directory = pathlib.Path(name)
    loggers = [stack.enter_context(logger) for logger in (
        CSV(directory / 'metrics.csv'), TensorBoard(directory))]
    checkpoints = Checkpoints(directory / 'checkpoints', config)
    checkpoints.open()
    stack.callback(checkpoints.close)

    def block(after_round=lambda line: None, around=contextlib.nullcontext):
      start = time.perf_counter()
      for _ in range(_BLOCK_ROUNDS):
        with around():
          line = _round(simulation)
        after_round(line)
      checkpoints.wait()
      return (time.perf_counter() - start) / _BLOCK_ROUNDS

    def with_view():
      with (mock.patch.object(
          Live, 'refresh', view_clock.timed(Live.refresh)), pseudo_terminal(),
            Progress('cifar10, moon') as progress):
        progress.logs[0].open(directory / 'log.txt')
        progress.training(1000, simulation.rounds_done, ())

        def show(line):
          view_clock.timed(progress.rounds)([line], .93)
          view_clock.timed(progress.logs[0].write)('round 3/1000')

        return block(show, lambda: progress.busy('training'))

    blocks = {
        'nothing': block, 'view': with_view,
        'checkpoints': lambda: block(lambda line: checkpoints.save(
            simulation.state_on_host(), {'round': line['round']})),
        'loggers': lambda: block(logger_clock.timed(
            lambda line: [logger(line) for logger in loggers]))}
    block()  # not timed: the first round has no negatives
    seconds: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    for repeat in range(repeats):
      for arm in _ARMS if repeat % 2 else _ARMS[::-1]:
        seconds[arm].append(blocks[arm]())
  rounds = repeats * _BLOCK_ROUNDS
  return {
      'run': config.command(),
      'megabytes_of_a_checkpoint': (
          simulation.client_bytes + 4 * simulation.num_parameters) / 1e6,
      'seconds_per_round': {
          arm: statistics.median(values) for arm, values in seconds.items()},
      'median_ratios': {
          arm: statistics.median(a / b for a, b in zip(
              seconds[arm], seconds['nothing'])) for arm in _ARMS[1:]},
      'view_processor_seconds_per_round': view_clock.seconds / rounds,
      'logger_seconds_per_round': logger_clock.seconds / rounds,
      'seconds': seconds}


def _round(simulation):
  start = time.perf_counter()
  record = simulation.run_round()
  line = simulation.evaluate() | record.metrics
  return line | {
      'round': simulation.rounds_done, 'seconds': time.perf_counter() - start,
      'examples_per_second': record.num_examples / record.seconds}


if __name__ == '__main__':
  main()
