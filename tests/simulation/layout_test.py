"""Tests the shapes of a federation's rounds."""

import numpy as np
import pytest
import tiny_federation

from moon_jax.simulation import round_spec


@pytest.mark.parametrize('batch_size, expected, steps', [
    (4, 4, [1, 2, 1]),  # only clients with fewer examples pad batches
    (10, 10, [1, 1, 1]),
    (64, 10, [1, 1, 1]),  # no more than the largest client has
])
def test_batches_are_at_most_the_largest_client(batch_size, expected, steps):
  federation = tiny_federation.make(batch_size=batch_size, local_epochs=2)
  found = round_spec.make(federation, num_lanes=1, num_devices=1)
  assert found.shape.batch_size == expected
  np.testing.assert_array_equal(found.steps_C, 2 * np.array(steps))


def test_short_batches_are_steps():
  federation = tiny_federation.make(
      batch_size=4, local_epochs=2, last_batch='keep')
  found = round_spec.make(federation, num_lanes=1, num_devices=1)
  np.testing.assert_array_equal(found.steps_C, [2, 6, 4])
