"""The Brier score as a metric of your own: the example of docs/metrics.md."""

import numpy as np


def brier_error(logits, labels):
  """Returns the mean squared distance of probabilities and labels, 0 to 2."""
  p = np.exp(logits - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  return np.mean(np.sum((p - np.eye(p.shape[1])[labels])**2, axis=1))
