"""Compares rounds with and without cached features of frozen layers.

python -m benchmarks.cached_features --data_dir=DIR --out=OUT

ResNet-18 with random weights, of which the output layer trains, on examples of
CIFAR-10. Measures seconds to make the simulation, in which features are
computed, seconds of a round with its evaluation, bytes of training inputs, and
the largest difference of the models after all rounds.
"""

import statistics
import time

import jax
import numpy as np

from benchmarks import common
import moon_jax as mj


def main() -> None:
  """Measures, prints and writes the results."""
  parser = common.parser(__doc__)
  parser.add_argument('--data_dir', default='')
  parser.add_argument('--dataset', default='cifar10')
  parser.add_argument('--examples', type=int, default=400)
  parser.add_argument('--rounds', type=int, default=3)
  args = parser.parse_args()
  data, count = mj.load_dataset(args.dataset, args.data_dir), args.examples
  data = data._replace(
      train_inputs=data.train_inputs[:count],
      train_labels=data.train_labels[:count],
      test_inputs=data.test_inputs[:count // 4],
      test_labels=data.test_labels[:count // 4])
  results = common.describe('cached_features')
  cases, models, losses = zip(*(
      measure(data, cache, args.rounds) for cache in (False, True)))
  results['cases'] = dict(zip(('computed in each step', 'cached'), cases))
  results['largest difference of models'] = max(
      jax.tree.leaves(jax.tree.map(
          lambda x, y: float(np.abs(x - y).max()), *models)))
  results['difference of test losses'] = abs(losses[0] - losses[1])
  common.write(args.out, 'cached_features', results)


def measure(data, cache, num_rounds):
  """Returns times of a federation, its model and its test loss."""
  start = time.perf_counter()
  simulation = mj.Simulation(federation(data, cache))
  made = time.perf_counter() - start
  simulation.compile()
  seconds = []
  for _ in range(num_rounds):
    start = time.perf_counter()
    simulation.run_round()
    line = simulation.evaluate()
    seconds.append(time.perf_counter() - start)
  inputs = simulation.program.spec.federation.data.train_inputs
  return {'seconds_to_make': made, 'seconds': seconds,
          'seconds_per_round': statistics.median(seconds),
          'input_bytes': inputs.nbytes
          }, simulation.global_model(), line['test_loss']


def federation(data, cache, clients=4):
  model = mj.freeze(mj.resnet18(data.num_classes, None), '^(?!out)',
                    evaluates=True, cache=cache)
  return mj.Federation(
      data=data, model=model, algorithm=mj.fedavg(), augment=False,
      clients=mj.partition.iid(len(data.train_labels), clients, seed=0),
      local_epochs=2, batch_size=20, learning_rate=.05)


if __name__ == '__main__':
  main()
