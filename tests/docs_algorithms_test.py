"""The algorithm of the documentation, FedDyn, and the pages of all methods."""

import sys

import numpy as np
import pytest

from docs_pages import DOCS, module, page, ROOT
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


def test_pages_of_methods_are_generated(monkeypatch):
  """By docs/site/method_pages.py."""
  monkeypatch.setattr(sys, 'path', [str(DOCS / 'site'), *sys.path])
  import method_pages

  assert page('methods') == method_pages.page()
  for path, made in (
      ('README.md', method_pages.readme),
      ('tests/papers/golden/README.md', lambda _: method_pages.golden_page())):
    text = (ROOT / path).read_text(encoding='utf-8')
    assert made(text) == text
