"""Federated algorithms, by name. To add one, write its factory, name it here.

`fedavg.py` is the default of every function; a variant replaces one or two. An
algorithm of a user's own needs no line here: `moon_jax.algorithms.user`.
"""

from moon_jax.algorithms import fedavg
from moon_jax.algorithms import fednova
from moon_jax.algorithms import fedprox
from moon_jax.algorithms import l2
from moon_jax.algorithms import moon
from moon_jax.algorithms import privacy
from moon_jax.algorithms import scaffold
from moon_jax.algorithms import server
from moon_jax.algorithms import solo
from moon_jax.algorithms import user
from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config
from moon_jax.errors import UserError

# name -> factory(config); the names are moon_jax.config.ALGORITHMS.
ALGORITHMS = {
    'fedavg': lambda config: fedavg.fedavg(),
    'fedprox': lambda config: fedprox.fedprox(),
    'scaffold': lambda config: scaffold.scaffold(config.num_clients),
    'moon': lambda config: (
        l2.l2() if config.contrastive == 'l2'
        else moon.moon(config.num_negatives)),
    'solo': lambda config: solo.solo(),
    'fednova': lambda config: fednova.fednova(),
    'centralized': lambda config: fedavg.fedavg(),  # with one client
}


def make(config: Config, cohort_size: int | None = None) -> Algorithm:
  """The algorithm that `config` names, behind its server optimizer.

  Args:
    config: the configuration, which may ask for differential privacy.
    cohort_size: clients a round, the most where rounds differ; by default the
      configuration's.

  Raises:
    UserError: where an algorithm of the user's own cannot be made.
  """
  algorithm = ALGORITHMS.get(config.algorithm, user.make)(config)
  if not isinstance(algorithm, Algorithm):
    raise UserError(
        f'--algorithm={config.algorithm} must return a '
        'moon_jax.algorithms.base.Algorithm, such as fedavg()._replace(...); '
        f'got {type(algorithm).__name__}')
  optimizer = server.make(config)
  if config.dp_clip:
    cohort_size = cohort_size or config.cohort_size()
    algorithm = privacy.with_clipping(algorithm, config.dp_clip, cohort_size)
    optimizer = privacy.with_noise(
        optimizer, config.dp_noise_multiplier * config.dp_clip / cohort_size,
        config.seed)
  return server.with_optimizer(algorithm, optimizer)
