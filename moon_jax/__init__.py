"""moon_jax: federated learning, simulated fast and exactly, in JAX.

Start at `moon_jax.config.Config` (what a run is), `moon_jax.run.run` (what a
run does) and `moon_jax.algorithms` (the equations).
"""

__version__ = '0.1.0'
