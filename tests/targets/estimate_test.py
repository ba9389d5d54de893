"""Tests the estimate of a round's time against closed forms."""

import numpy as np

from moon_jax.targets import estimate
from moon_jax.targets import Target
from moon_jax.targets.kernels import Counts
from moon_jax.targets.kernels import Kernel

TARGET = Target('GPU', '', 10**9, memory_bandwidth=1e12, peak_flops={
    'float32': 1e13, 'tf32': 1e14, 'bfloat16': 2e14}, has_published_peaks=True)


def estimated(*kernels, rows=100.):
  return estimate.estimate(TARGET, Counts(list(kernels), {}, {}), rows)


def test_a_small_kernel_takes_the_launch_overhead():
  result = estimated(Kernel('fusions', {}, 100.))
  np.testing.assert_allclose(result.seconds, 100 * estimate.LAUNCH_SECONDS)
  assert result.memory_seconds < result.launch_seconds == result.seconds


def test_a_kernel_takes_the_maximum_of_its_times():
  share = estimate.EFFICIENCY
  product = Kernel('library calls', {'float32': 1e9, 'tf32': 1e9}, 1.)
  moving = Kernel('copies', {}, 1e9)
  both = Kernel('fusions', {'bfloat16': 2e11}, 1e8)
  times = [(1e-4 + 1e-5) / share, 1e-3 / share, 1e-3 / share]
  for kernel, time in zip((product, moving, both), times):
    np.testing.assert_allclose(estimated(kernel).seconds, 100 * time)
  together = estimated(product, moving, both)
  np.testing.assert_allclose(together.seconds, 100 * sum(times))
  np.testing.assert_allclose(
      together.memory_seconds, 100 * (1e-3 + 1e-4) / share, rtol=1e-6)
  assert together.row_flops == {
      'float32': 1e9, 'tf32': 1e9, 'bfloat16': 2e11}


def test_kernels_of_inner_loops_are_multiplied_by_the_trip_count():
  once, often = (estimated(Kernel('fusions', {'float32': 1e12}, 8., times))
                 for times in (1., 7.))
  for name in ('seconds', 'launch_seconds', 'product_seconds',
               'memory_seconds'):
    np.testing.assert_allclose(getattr(often, name), 7 * getattr(once, name))
  assert often.row_bytes == 7 * once.row_bytes == 56
