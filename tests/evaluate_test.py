"""Evaluation against numpy, with a test set that fills no whole batch."""

import jax
import jax.numpy as jnp
import numpy as np

import federation
from moon_jax import evaluate


def test_every_example_counts_once(monkeypatch):
  monkeypatch.setattr(evaluate, '_BATCH', 32)
  model = federation.linear_model()
  images, labels = federation.IMAGES[:75], federation.LABELS[:75]
  keys = jax.random.split(jax.random.key(0), 2)
  variables_R = jax.vmap(lambda k: model.init(k, jnp.zeros((1, 2, 2, 1))))(keys)
  result = evaluate.make_evaluate(model, federation.normalize)(
      variables_R, evaluate.batched(images, labels))

  x = ((images.reshape(75, -1) / 255.) - .5) / .25
  for r in range(2):
    w, b = (np.asarray(variables_R['params'][k][r], np.float64) for k in 'wb')
    logits = x @ w + b
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert int(result.num_correct[r]) == (logits.argmax(1) == labels).sum()
    np.testing.assert_allclose(
        result.loss_sum[r], -log_p[np.arange(75), labels].sum(), rtol=1e-5)
