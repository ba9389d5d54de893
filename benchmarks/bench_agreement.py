"""Checks that both sides of the benchmark compute the same results.

Three clients train for three rounds of four steps from the same initial
weights. Each batch is the client's whole data set, so shuffling has no effect.
MOON has a previous model from the second round on. Both sides run the code that
is timed.
"""

import jax
import numpy as np

from benchmarks import golden as golden_lib
from benchmarks import torch_loop
from moon_jax.config import Config
from moon_jax.data.dataset import Dataset
from moon_jax.simulation import build, checks
from moon_jax.simulation.simulation import Simulation

TOLERANCE = 1e-5
_ROUNDS, _STEPS = 3, 4


def check(golden: str, device: str) -> dict[str, float]:
  """Trains on both sides and compares losses and weights.

  Args:
    golden: path of simple_cnn.npz, whose images and labels are used.
    device: PyTorch's device.

  Returns:
    The largest differences of losses and of weights.

  Raises:
    ValueError: if a difference is above 1e-5.
  """
  dataset, clients = _data(golden)
  differences = {}
  for algorithm in ('fedavg', 'moon'):
    losses, weights = _differences(algorithm, dataset, clients, device)
    differences |= {
        f'{algorithm}_losses': losses, f'{algorithm}_weights': weights}
  if not all(value <= TOLERANCE for value in differences.values()):
    raise ValueError('moon_jax and PyTorch must differ by at most '
                     f'{TOLERANCE}, got {differences}')
  return differences


def _data(golden):
  with np.load(golden) as arrays:
    images, sizes = arrays['images_u8'], arrays['client_sizes']
    labels = arrays['labels'].astype(np.int32)
  dataset = Dataset(
      'agreement', images, labels, images, labels, tuple('0123456789'),
      (.49, .48, .45), (.25, .24, .26))
  return dataset, np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])


def _differences(algorithm, dataset, clients, device):
  """Returns the largest differences of mean losses and of global weights."""
  config = checks.validate(Config(
      algorithm=algorithm, num_clients=len(clients), augment=False,
      num_rounds=_ROUNDS, local_epochs=_STEPS, batch_size=max(
          map(len, clients))))
  cohort = list(range(len(clients)))
  ours = Simulation(build.federation(
      config, dataset, clients, [cohort] * _ROUNDS))
  shapes = jax.tree.map(lambda w: w[0], ours.state.variables)
  variables = jax.tree.map(lambda initial: np.asarray(initial)[None],
                           golden_lib.draw_variables('global', shapes))
  ours.restore(ours.state_on_host()._replace(variables=variables))
  theirs = torch_loop.Loop(config, dataset, clients, device)
  theirs.model = _to_torch(variables, device)
  losses, weights = [], []
  for _ in range(_ROUNDS):
    loss = ours.run_round().metrics['train_loss']
    losses.append(abs(loss - np.mean(theirs.run_round(cohort).losses)))
    model = _to_torch(ours.state.variables, device)
    weights += [float((w - theirs.model[name]).abs().max())
                for name, w in model.items()]
  return float(max(losses)), max(weights)


def _to_torch(variables, device):
  leaves, _ = jax.tree_util.tree_flatten_with_path(variables['params'])
  entries = [torch_loop.from_flax(
      '/'.join(entry.key for entry in path), np.asarray(w[0]))
             for path, w in leaves]
  return {name: w.to(device) for name, w in entries}
