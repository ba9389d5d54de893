"""moon_jax: federated learning, simulated fast and exactly, in JAX.

Start at `moon_jax.config.Config` (what a run is), `moon_jax.run.run` (what a
run does) and `moon_jax.algorithms` (the equations); `load` reads what a run
ended with.
"""

__version__ = '0.1.0'


def load(path):
  """The model and the variables of a finished run; see `moon_jax.export`."""
  from moon_jax import export  # JAX takes seconds to import

  return export.load(path)
