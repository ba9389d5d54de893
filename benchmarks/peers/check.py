"""Checks that all sides of benchmarks.peers compute the same FedAvg.

python -m benchmarks.peers.check --python=PYTHON --sources=SOURCES --out=OUT

Four clients train for two rounds, from the same weights, on one to three
batches. A client's examples are copies of one image, so shuffling has no
effect. The weights of each side are compared with those of the PyTorch loop,
which `benchmarks.bench` compares with moon_jax. Sides that keep a client's
momentum over rounds, which the others do not, are compared without momentum.
OUT/peers_check.json has the largest differences.
"""

import argparse
import pathlib
import tempfile

import numpy as np

from benchmarks import common
from benchmarks.peers import __main__ as peers
from moon_jax.config import Config

TOLERANCE = 1e-5
_KEEP_MOMENTUM = 'PFLlib', 'fluke'
_LOOP = 'PyTorch loop'
# Examples of each client. An odd number of clients would be another cohort in
# each process of pfl-research, whose copies of the sampler then differ.
_SIZES = 128, 64, 192, 64


def main() -> None:
  parser = common.parser(__doc__)
  peers.add_flags(parser)
  args = parser.parse_args()
  names = args.side or [name for name in peers.SIDES if name != 'moon_jax']
  common.write(args.out, 'peers_check', {
      'command': common.describe('peers.check')['command'],
      'differences': differences(names, args)})


def differences(names: list[str], args: argparse.Namespace
                ) -> dict[str, float]:
  """Returns each side's largest difference of weights from the loop.

  Raises:
    ValueError: if one is above `TOLERANCE`.
  """
  found, expected = {}, {}
  with tempfile.TemporaryDirectory() as directory:
    inputs = pathlib.Path(directory) / 'inputs.npz'
    write_inputs(inputs)
    for name in dict.fromkeys([_LOOP, *names]):
      momenta = [0.] if name in _KEEP_MOMENTUM else [.9]
      for momentum in [0., .9] if name == _LOOP else momenta:
        weights = _weights(name, momentum, args, inputs)
        if name == _LOOP:
          expected[momentum] = weights
        found[name] = max(float(abs(w - v).max()) for w, v in zip(
            weights, expected[momentum], strict=True))
      print(f'{name}: {found[name]:.1e}', flush=True)
      if not found[name] <= TOLERANCE:  # or NaN
        raise ValueError(f'the weights of {name} must differ from those of the '
                         f'loop by at most {TOLERANCE}, got {found[name]}')
  return found


def write_inputs(path: pathlib.Path) -> None:
  """Writes clients whose examples are copies of one random image each."""
  random, num_examples = np.random.default_rng(0), sum(_SIZES)
  images = random.integers(0, 256, (len(_SIZES), 32, 32, 3), np.uint8)
  clients = np.repeat(np.arange(len(_SIZES)), _SIZES)
  np.savez(path, train_inputs=images[clients], train_labels=clients,
           test_inputs=images, test_labels=np.arange(len(_SIZES)),
           mean=[.5] * 3, std=[.25] * 3, sizes=_SIZES,
           clients=np.arange(num_examples))


def _weights(name, momentum, args, inputs):
  config = Config(
      algorithm='fedavg', batch_size=64, learning_rate=.1, num_rounds=2,
      optimizer=f'sgd(momentum={momentum},weight_decay=.01)')
  path = inputs.with_name('weights.npz')
  peers.run_peer(peers.SIDES[name], peers.task_of(config), args, inputs, path)
  with np.load(path) as arrays:
    return [*arrays.values()]


if __name__ == '__main__':
  main()
