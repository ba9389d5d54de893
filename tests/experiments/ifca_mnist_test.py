"""Rotated images of IFCA's experiments."""

import jax
import numpy as np

from experiments import ifca_mnist


def test_each_image_is_in_each_rotation():
  images = np.arange(8 * 9).reshape(8, 3, 3, 1)
  orders = np.array([np.roll(np.arange(8), r) for r in range(4)])
  x, y, client = ifca_mnist.rotated(images, np.arange(8), orders, 16)
  assert np.bincount(client).tolist() == [2] * 16
  for image, label, i in zip(x, y, client):
    expected = images[label]
    for _ in range(i % 4):  # counterclockwise
      expected = expected.swapaxes(0, 1)[::-1]
    np.testing.assert_array_equal(image, expected)
  for r in range(4):
    np.testing.assert_array_equal(y[client % 4 == r], orders[r])


def test_weights_begin_as_in_pytorch():
  params = ifca_mnist.make(10).init(
      jax.random.key(0), np.zeros((1, 28, 28, 1)))['params']
  for layer, fan_in in ('fc1', 784), ('out', 200):
    for w in params[layer].values():
      assert .7 < abs(w).max() * fan_in**.5 <= 1
      np.testing.assert_allclose(
          np.std(w) * (3 * fan_in)**.5, 1, atol=.5 if w.size < 99 else .1)
