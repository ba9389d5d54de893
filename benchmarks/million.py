"""Measures time, memory and disk space of runs with a million clients.

python -m benchmarks.million --out=DIR [--case=moon] [--num_clients=1000000]

Each case is a process of its own, so that its peak memory is that of the case:

  fedavg      mlp on the table of docs/million.py, as a run with checkpoints
  moon        the same with --client_state=disk
  fedbuff     fedavg with a server step per 100 updates, of clients that are
              available in 0.3 of each day
  moon_cnn    simple_cnn on images of 32x32x3 that clients share, in Python,
              with the state of clients on disk
"""

import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks import common, sides

_PER_ROUND = 100  # clients
# What is changed in the configuration of a case.
_CASES: dict[str, dict[str, Any]] = {
    'fedavg': {'algorithm': 'fedavg'}, 'moon': {}, 'fedbuff': {
        'algorithm': 'fedavg', 'participation': 1.,
        'rounds': f'fedbuff(concurrency={2 * _PER_ROUND}, '
                  f'buffer_size={_PER_ROUND})',
        'clock': 'lognormal(availability=0.3)'},
    'moon_cnn': {}}
_NUM_IMAGES = 10_000


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--case', choices=_CASES, action='append',
                      help='may be repeated; all cases by default')
  parser.add_argument('--num_clients', type=int, default=10**6,
                      help='number of clients (default: 1000000)')
  parser.add_argument('--rounds', type=int, default=20,
                      help='number of rounds (default: 20)')
  args = parser.parse_args()
  sys.path.append(str(common.ROOT / 'docs'))  # of the child processes, too
  common.write(args.out, 'million', {
      case: common.run(measure, case, args.num_clients, args.rounds)
      for case in args.case or _CASES})


def measure(case: str, num_clients: int, num_rounds: int) -> dict[str, Any]:
  """Returns the measurements of a case; peak memory is that of this process."""
  start, ends = time.perf_counter(), []
  callback = lambda *_: ends.append(time.perf_counter() - start)
  with tempfile.TemporaryDirectory() as directory:
    run = _moon_cnn if case == 'moon_cnn' else _run
    result = run(case, num_clients, num_rounds, directory, callback)
  seconds = [after - before for before, after in zip(ends, ends[1:])]
  return {
      'cpu': common.describe('million')['cpu'],
      'clients': num_clients, 'clients_per_round': _PER_ROUND,
      'rounds': num_rounds, 'seconds_to_first_round': round(ends[0], 1),
      'seconds_per_round': round(statistics.median(seconds), 3),
      'total_seconds': round(time.perf_counter() - start, 1),
      'peak_megabytes': round(sides.peak_bytes() / 2**20), **result}


def _run(case, num_clients, num_rounds, directory, callback):
  """Runs a configuration in a work directory."""
  import moon_jax as mj

  config = mj.Config(
      dataset='million:million', data_dir=str(num_clients), model='mlp',
      partition='natural', num_clients=num_clients, num_rounds=num_rounds,
      local_epochs=2, batch_size=5, learning_rate=.1, checkpoint_every=10,
      client_state='disk', workdir=directory, **{
          'participation': _PER_ROUND / num_clients, **_CASES[case]})
  simulations = []
  summary = mj.run(config, callbacks=[
      callback, lambda simulation, _: simulations.append(simulation)])
  bytes_on_disk = sum(file.stat().st_blocks * 512
                      for file in pathlib.Path(directory).rglob('*')
                      if file.is_file())
  return {'command': config.command(),
          'test_accuracy': summary['test_accuracy'], **_state(simulations[-1]),
          'workdir_megabytes': bytes_on_disk / 1e6}


def _moon_cnn(case, num_clients, num_rounds, directory, callback):
  """Trains a federation made in Python; clients share images."""
  del case
  import numpy as np

  import moon_jax as mj
  from moon_jax.data.clients import Clients

  rng = np.random.default_rng(0)
  labels = rng.integers(10, size=_NUM_IMAGES + 1000).astype(np.int32)
  images = rng.integers(
      0, 128, (len(labels), 32, 32, 3), np.uint8) + 8 * labels.astype(
          np.uint8)[:, None, None, None]
  data = mj.Dataset(
      'images', images[:_NUM_IMAGES], labels[:_NUM_IMAGES],
      images[_NUM_IMAGES:], labels[_NUM_IMAGES:],
      tuple(f'class {k}' for k in range(10)), mean=(.4,), std=(.2,))
  # Ten different images each: 997 has no factor of _NUM_IMAGES.
  first = rng.integers(_NUM_IMAGES, size=(num_clients, 1), dtype=np.int32)
  clients = Clients(
      ((first + 997 * np.arange(10, dtype=np.int32)) % _NUM_IMAGES).ravel(),
      np.full(num_clients, 10))
  simulation = mj.Simulation(mj.Federation(
      data=data, clients=clients, model=mj.simple_cnn(data.num_classes),
      algorithm=mj.moon(mu=1.), client_state='disk', local_epochs=1,
      batch_size=10, rounds=mj.rounds.sampled(
          num_clients, _PER_ROUND, num_rounds, seed=0)), directory)
  for record in simulation.rounds(num_rounds, eval_every=num_rounds):
    callback(simulation, record)
  return _state(simulation)


def _state(simulation):
  """Returns sizes of client state: if all clients had trained, and really."""
  clients = simulation.state.clients
  return {
      'bytes_per_client': simulation.client_bytes // (
          simulation.federation.num_clients),
      'clients_trained': len(clients.written()[0]) if clients else 0,
      'state_of_all_megabytes': simulation.client_bytes / 1e6,
      'state_on_disk_megabytes': clients.disk_bytes / 1e6 if clients else 0.}


if __name__ == '__main__':
  main()
