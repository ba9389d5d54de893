"""--check_determinism finds what differs."""

import jax
import pytest

from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.simulation import build
from moon_jax.simulation.simulation import check_determinism
from moon_jax.simulation.simulation import Simulation

CONFIG = Config(dataset='breast_cancer', model='mlp', num_clients=4,
                num_rounds=1, algorithm='fedavg', partition='iid',
                local_epochs=1, projection_head=False)


@pytest.mark.parametrize('is_other', [
    True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_bit_is_found(is_other):
  dataset = sources.load('breast_cancer', '')
  made = []

  def make():
    simulation = Simulation(build.federation(CONFIG, dataset))
    made.append(simulation)
    if is_other and len(made) == 2:  # by the last bit of its weights
      program = simulation._program
      program._state = program._state._replace(variables=jax.tree.map(
          lambda x: x * (1 + 2**-23), program._state.variables))
    return simulation

  if is_other:
    with pytest.raises(UserError, match="'drift'.*when round 1 is trained"):
      check_determinism(make)
  else:
    check_determinism(make)
  assert len(made) == 2
