"""--check_determinism finds what differs."""

import jax
import pytest
import tiny_federation

from federation import linear_model
from moon_jax.errors import UserError
from moon_jax.simulation.simulation import check_determinism, Simulation


@pytest.mark.parametrize('is_other', [
    True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_bit_is_found(is_other):
  federation = tiny_federation.make(
      model=linear_model(), cohorts=[[0, 1, 2]], local_epochs=1,
      data=tiny_federation.make().data._replace(class_names=tuple('abc')))
  made = []

  def make():
    simulation = Simulation(federation)
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
