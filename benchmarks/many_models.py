"""Measures rounds of federations with many models, and with one model.

python -m benchmarks.many_models --out=DIR [--num_clients=1000] [--rounds=8]

All clients take one step of SGD on a batch of 8 of their examples, of 32
features, with an MLP of 4,310 parameters:

  star          one model
  ifca          4 models; each client also evaluates all of them
  hierarchical  4 edge servers, averaged every 4 rounds
  edges_100     100 edge servers
  gossip        as many models as clients, on a ring
  epidemic      the same, sent to 4 others in each round

Each case runs in a separate process, whose peak memory is that of the case.
"""

import statistics
import time
from typing import Any

from benchmarks import common, sides

_CASES = {
    'star': 'star', 'ifca': 'ifca(clusters=4)',
    'hierarchical': 'hierarchical(edges=4, period=4)',
    'edges_100': 'hierarchical(edges=100, period=4)',
    'gossip': 'gossip', 'epidemic': 'epidemic(peers=4)'}
_BATCH, _FEATURES = 8, 32


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--case', choices=_CASES, action='append',
                      help='may be repeated; all cases by default')
  parser.add_argument('--num_clients', type=int, default=1000,
                      help='number of clients (default: 1000)')
  parser.add_argument('--rounds', type=int, default=8,
                      help='number of measured rounds (default: 8)')
  args = parser.parse_args()
  common.write(args.out, 'many_models', common.describe('many_models') | {
      case: common.run(measure, case, args.num_clients, args.rounds)
      for case in args.case or _CASES})


def measure(case: str, num_clients: int, num_rounds: int) -> dict[str, Any]:
  """Returns the measurements of a case; peak memory is that of this process."""
  from flax import linen as nn
  import numpy as np

  import moon_jax as mj
  from moon_jax.config import parts

  random = np.random.default_rng(0)
  labels = random.integers(10, size=_BATCH * num_clients + 100).astype(np.int32)
  features = random.normal(size=(len(labels), _FEATURES)).astype(np.float32)
  data = mj.Dataset(
      'features', features[:-100], labels[:-100], features[-100:],
      labels[-100:], tuple('0123456789'), mean=(0.,), std=(1.,))
  topology = parts.make('topology', parts.parse('topology', _CASES[case]),
                        num_clients=num_clients, seed=0)
  simulation = mj.Simulation(mj.Federation(
      data=data, clients=np.split(np.arange(len(labels) - 100), num_clients),
      model=mj.from_flax(nn.Sequential([
          nn.Dense(100), nn.relu, nn.Dense(data.num_classes)])),
      algorithm=mj.fedavg(), topology=topology,
      local_epochs=1, batch_size=_BATCH, learning_rate=.1))
  start = time.perf_counter()
  simulation.run_round()
  first = time.perf_counter() - start
  seconds = [simulation.run_round().seconds for _ in range(num_rounds)]
  return {
      'models': topology.num_models, 'clients': num_clients,
      'num_parameters': simulation.num_parameters,
      'seconds_of_first_round': round(first, 1),
      'seconds_per_round': round(statistics.median(seconds), 4),
      'least_seconds_per_round': round(min(seconds), 4),
      'bytes_per_round': simulation.bytes_per_round(),
      'peak_megabytes': round(sides.peak_bytes() / 2**20)}


if __name__ == '__main__':
  main()
