"""moon_jax: federated learning, simulated fast and exactly, in JAX.

Start at `moon_jax.config.Config` (what a run is),
`moon_jax.training.run.run` (what a run does) and `moon_jax.algorithms` (the
equations); `load` reads what a run ended with.
"""

__version__ = '0.1.0'


def load(path):
  """Returns a finished run's model and variables (`moon_jax.rundir.export`)."""
  from moon_jax.rundir import export  # JAX takes seconds to import

  return export.load(path)
