"""The algorithms of the documentation: FedDyn and FedDecorr."""

import jax
import numpy as np
import pytest

from docs_pages import module
import federation as fed

pytestmark = pytest.mark.docs
COHORTS = [(0, 1, 4, 5), (7, 2, 1, 3), (6, 5, 4, 0)]


def test_it_equals_a_plain_numpy_loop():
  alpha = .1
  feddyn = module('docs/feddyn.py').feddyn
  federated = fed.Federation(feddyn(len(fed.SIZES), alpha), num_lanes=2)
  w = fed.matrix(federated.state.variables['params'], 0)
  lr, momentum, decay = (
      fed.HPARAMS[k] for k in ('learning_rate', 'momentum', 'weight_decay'))
  g, h = np.zeros((len(fed.SIZES), *w.shape)), 0 * w
  for t, cohort in enumerate(COHORTS):
    federated.round(cohort)
    local = {}
    for c in cohort:
      wi, v = w.copy(), 0
      for batch in fed.batches(t, c):
        v = momentum * v + (fed.gradient(wi, batch) - g[c] + alpha * (wi - w)
                            + decay * wi)
        wi = wi - lr * v
      local[c] = wi
    for c, wi in local.items():
      g[c] -= alpha * (wi - w)
      h -= alpha * (wi - w) / len(fed.SIZES)
    total = sum(fed.SIZES[c] for c in cohort)
    w = sum(fed.SIZES[c] / total * wi for c, wi in local.items()) - h / alpha
  state = federated.state
  np.testing.assert_allclose(
      fed.matrix(state.variables['params'], 0), w, atol=3e-6)
  for c in range(len(fed.SIZES)):
    np.testing.assert_allclose(fed.matrix(state.clients, 0, c), g[c], atol=1e-6)


@pytest.fixture
def feddecorr():
  return module('docs/feddecorr.py')


def test_decorrelation_equals_numpy(feddecorr):
  """Padding, whatever it holds, and features without variance do not count."""
  rng = np.random.default_rng(0)
  features = rng.normal(size=(7, 4)) @ rng.normal(size=(4, 4))
  correlation = np.corrcoef(features.T)
  np.fill_diagonal(correlation, 0)
  expected = (correlation**2).sum() / 16
  padded = np.float32(np.concatenate([features, 1e3 * np.ones((2, 4))]))
  mask_B = np.float32([1] * 7 + [0] * 2)
  term = jax.value_and_grad(feddecorr.decorrelation)
  value, grad = term(padded, mask_B)
  assert value == pytest.approx(expected, rel=1e-5)
  assert not grad[7:].any() and grad[:7].any()
  padded[:, 2] = 0
  correlation[2] = correlation[:, 2] = 0
  value, grad = term(padded, mask_B)
  assert value == pytest.approx((correlation**2).sum() / 16, rel=1e-5)
  assert np.isfinite(grad).all()


def test_with_beta_0_feddecorr_is_fedavg(feddecorr):
  ours, theirs = (fed.Federation(a) for a in (
      feddecorr.feddecorr(0.), fed.fedavg()))
  for f in (ours, theirs):
    f.hparams = {**f.hparams, 'beta': 0 * f.hparams['mu']}
    f.round(COHORTS[0])
  fed.assert_trees_close(ours.state.variables, theirs.state.variables)
