"""Builds the configured algorithm: the method and what wraps it."""

from moon_jax.algorithms import privacy
from moon_jax.algorithms import registry
from moon_jax.algorithms import server
from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config


def make(config: Config, cohort_size: int | None = None) -> Algorithm:
  """Returns the method that `config` names, with its server optimizer.

  Args:
    config: the configuration, which may ask for differential privacy.
    cohort_size: clients per round, the maximum if rounds differ; by default the
      configuration's.

  Raises:
    UserError: if a user-defined algorithm cannot be made.
  """
  algorithm = registry.make(config)
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
