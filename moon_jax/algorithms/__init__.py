"""Federated algorithms, by name. To add one, write its factory, name it here.

`fedavg.py` is the default of every function; a variant replaces one or two.
"""

from moon_jax.algorithms import fedavg
from moon_jax.algorithms import moon
from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config

# name -> factory(config); the names are the choices of Config.algorithm.
ALGORITHMS = {
    'fedavg': lambda config: fedavg.fedavg(),
    'moon': lambda config: moon.moon(config.num_negatives),
}


def make(config: Config) -> Algorithm:
  """Returns the algorithm that `config` names."""
  return ALGORITHMS[config.algorithm](config)
