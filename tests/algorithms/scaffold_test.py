"""Both forms of SCAFFOLD, against a plain loop and against each other."""

import jax
import numpy as np
import pytest

from support import federation as fed

COHORTS = [*fed.COHORTS, (1, 2, 3, 4)]


@pytest.mark.parametrize('momentum', [.9, 0.])
def test_the_form_of_niid_bench_equals_a_plain_numpy_loop(momentum):
  federated = fed.Federation(
      fed.scaffold(len(fed.SIZES), 'niid_bench'), num_lanes=2,
      hparams={'momentum': momentum})
  model = fed.matrix(federated.state.variables['params'], 0)
  c, c_of = np.zeros((5, 3)), np.zeros((len(fed.SIZES), 5, 3))
  for t, cohort in enumerate(COHORTS):
    federated.round(cohort)
    local, changes = {}, 0
    for i in cohort:
      local[i], gradients = fed.local_steps(
          t, i, model, momentum, c - c_of[i])
      new = c_of[i] - c + (model - local[i]) / (
          len(gradients) * fed.HPARAMS['learning_rate'])
      changes = changes + new - c_of[i]
      c_of[i] = new
    model, c = fed.mean(local), c + changes / len(fed.SIZES)
    state = federated.state
    close = lambda found, expected, atol: np.testing.assert_allclose(
        found, expected, rtol=1e-6, atol=atol)
    close(fed.matrix(state.variables['params'], 0), model, 1e-6)
    # Variates are displacements divided by lr = 0.05, and so is rounding.
    close(fed.matrix(state.server.own, 0), c, 5e-6)
    for i in range(len(fed.SIZES)):
      close(fed.matrix(state.clients.own, 0, i), c_of[i], 5e-6)
  assert np.abs(c).max() > .01


def test_a_round_at_rate_0_changes_nothing():
  federated = fed.Federation(
      fed.scaffold(len(fed.SIZES)), hparams={'momentum': 0.})
  federated.round(COHORTS[0])
  before = fed.copied(federated.state)
  federated.hparams = {**federated.hparams,
                       'learning_rate': 0 * federated.hparams['momentum']}
  federated.round(COHORTS[0])
  after = federated.state
  assert max(np.abs(c).max() for c in jax.tree.leaves(before.server)) > .01
  for name in 'server', 'clients':
    fed.assert_trees_close(getattr(after, name), getattr(before, name), atol=0)
  fed.assert_trees_close(after.variables, before.variables)
