"""Federated algorithms, by name. To add one, write its factory, name it here.

`fedavg.py` is the default of every function; a variant replaces one or two.
"""

from moon_jax.algorithms import fedavg
from moon_jax.algorithms import fednova
from moon_jax.algorithms import fedprox
from moon_jax.algorithms import moon
from moon_jax.algorithms import scaffold
from moon_jax.algorithms import server
from moon_jax.algorithms import solo
from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config

# name -> factory(config); the names are the choices of Config.algorithm.
ALGORITHMS = {
    'fedavg': lambda config: fedavg.fedavg(),
    'fedprox': lambda config: fedprox.fedprox(),
    'scaffold': lambda config: scaffold.scaffold(config.num_clients),
    'moon': lambda config: (
        moon.moon_l2() if config.contrastive == 'l2'
        else moon.moon(config.num_negatives)),
    'solo': lambda config: solo.solo(),
    'fednova': lambda config: fednova.fednova(),
    'centralized': lambda config: fedavg.fedavg(),  # with one client
}


def make(config: Config) -> Algorithm:
  """The algorithm that `config` names, behind its server optimizer."""
  return server.with_optimizer(
      ALGORITHMS[config.algorithm](config), server.make(config))
