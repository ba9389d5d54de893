"""--check_determinism finds what differs."""

import jax
import pytest

from moon_jax import determinism
from moon_jax import run
from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.simulation import Simulation

CONFIG = Config(dataset='digits', model='mlp', num_clients=4, num_rounds=1,
                algorithm='moon', local_epochs=1, partition='iid')


def test_a_bit_is_found():
  dataset = sources.load('digits', '')
  clients = run.split(CONFIG, dataset)
  made = []

  def make(is_other=False):
    simulation = Simulation(CONFIG, dataset, clients, cohort.make(CONFIG))
    made.append(simulation)
    if is_other and len(made) % 2 == 0:  # by the last bit of its weights
      simulation.state = simulation.state._replace(variables=jax.tree.map(
          lambda x: x * (1 + 2**-23), simulation.state.variables))
    return simulation

  determinism.check(make)
  assert len(made) == 2
  with pytest.raises(UserError, match="'drift'.*when round 1 is trained"):
    determinism.check(lambda: make(is_other=True))
