"""Builds the configured algorithm: the method and what wraps it."""

from moon_jax.algorithms import fednova
from moon_jax.algorithms import fedprox
from moon_jax.algorithms import privacy
from moon_jax.algorithms import registry
from moon_jax.algorithms import scaffold
from moon_jax.algorithms import server
from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config


def make(config: Config, cohort_size: int | None = None) -> Algorithm:
  """Returns the method that `config` names, with all that wraps it.

  Args:
    config: the configuration, which may ask for differential privacy.
    cohort_size: clients per round, the maximum if rounds differ; by default the
      configuration's.

  Raises:
    UserError: if a user-defined algorithm cannot be made.
  """
  algorithm = _aggregated(config, _proximal(config, registry.make(config)))
  algorithm = algorithm._replace(
      hparams={**algorithm.hparams, **server.hparams(config)})
  optimizer_fn = server.make(config)
  if config.dp_clip:
    cohort_size = cohort_size or config.cohort_size()
    algorithm = privacy.with_clipping(algorithm, config.dp_clip, cohort_size)
    optimizer_fn = privacy.with_noise(
        optimizer_fn, config.dp_noise_multiplier * config.dp_clip / cohort_size,
        config.seed)
  return server.with_optimizer(algorithm, optimizer_fn)


def _proximal(config: Config, algorithm: Algorithm) -> Algorithm:
  """Returns the algorithm with the term of --proximal_mu, if above 0."""
  return (fedprox.with_proximal(algorithm, config.proximal_mu)
          if config.proximal_mu else algorithm)


def _aggregated(config: Config, algorithm: Algorithm) -> Algorithm:
  """Returns the algorithm with the server of --aggregation."""
  return {
      'average': lambda: algorithm,
      'fednova': lambda: fednova.with_fednova(algorithm),
      'scaffold': lambda: scaffold.with_control_variates(
          algorithm, config.num_clients, config.scaffold_form),
  }[config.aggregation]()
