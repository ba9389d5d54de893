"""Which clients are hostile, drawn from a seed.

The draw is JAX's, so that a compiled round repeats it and runs of one program
may have different seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.config import Config

_EXACT = 2**24  # hyperparameters of a run are float32


def as_hparam(seed: int) -> float:
  """Returns a seed as a hyperparameter, modulo 2^24."""
  return float(seed % _EXACT)


def drawn(num_attackers: int, num_clients: int,
          seed: jax.typing.ArrayLike) -> jax.Array:
  """Returns whether each client is hostile, bool [C].

  More attackers of the same seed include fewer.

  Args:
    num_attackers: number of hostile clients.
    num_clients: C.
    seed: result of `as_hparam`.
  """
  key = jax.random.key(jnp.asarray(seed).astype(jnp.uint32))
  return jax.random.permutation(key, num_clients) < num_attackers


def configured(config: Config) -> list[int]:
  """Returns the hostile clients of a configuration; none without --attack."""
  if config.attack.name == 'none':
    return []
  return np.flatnonzero(drawn(
      config.num_attackers(), config.num_clients,
      as_hparam(config.split_seed()))).tolist()
