"""Compares rounds with and without cached features of frozen layers.

    python -m benchmarks.cached_features --data_dir=DIR

Trains the output layer of a ResNet-18 with random weights on examples of
CIFAR-10. Prints a table: seconds to make the simulation, which computes the
features; median seconds of a round with its evaluation; megabytes of training
inputs. Then prints the largest difference of the models and of the test losses
after all rounds.
"""

import argparse
import time

import jax
import numpy as np

import moon_jax as mj


def federation(data, cache, clients=4):
  model = mj.freeze(mj.resnet18(data.num_classes, None), '^(?!out)',
                    evaluates=True, cache=cache)
  return mj.Federation(
      data=data, model=model, algorithm=mj.fedavg(), augment=False,
      clients=mj.partition.iid(len(data.train_labels), clients, seed=0),
      local_epochs=2, batch_size=20, learning_rate=.05)


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--data_dir', default='',
                      help='directory of the data set')
  parser.add_argument('--dataset', default='cifar10',
                      help='a data set of images')
  parser.add_argument('--examples', type=int, default=400,
                      help='number of training examples (default: 400)')
  parser.add_argument('--rounds', type=int, default=3,
                      help='number of rounds (default: 3)')
  args = parser.parse_args(argv)
  data, count = mj.load_dataset(args.dataset, args.data_dir), args.examples
  data = data._replace(
      train_inputs=data.train_inputs[:count],
      train_labels=data.train_labels[:count],
      test_inputs=data.test_inputs[:count // 4],
      test_labels=data.test_labels[:count // 4])
  models, losses = [], []
  print('| features | seconds to make | seconds per round | inputs (MB) |')
  print('|---|---|---|---|')
  for cache in False, True:
    start = time.perf_counter()
    simulation = mj.Simulation(federation(data, cache))
    made = time.perf_counter() - start
    simulation.compile()
    seconds = []
    for _ in range(args.rounds):
      start = time.perf_counter()
      simulation.run_round()
      line = simulation.evaluate()
      seconds.append(time.perf_counter() - start)
    losses.append(line['test_loss'])
    models.append(simulation.global_model())
    inputs = simulation.program.spec.federation.data.train_inputs
    print(f'| {"cached" if cache else "computed in each step"} | {made:.1f} '
          f'| {np.median(seconds):.3f} | {inputs.nbytes / 1e6:.2f} |',
          flush=True)
  difference = max(jax.tree.leaves(jax.tree.map(
      lambda x, y: float(np.abs(x - y).max()), *models)))
  print(f'largest difference of the models: {difference:.1e}; '
        f'of the test losses: {abs(losses[0] - losses[1]):.1e}')


if __name__ == '__main__':
  main()
