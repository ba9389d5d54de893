"""Estimates a round's time from the kernels of a compiled program.

This is a roofline model. The time of a kernel is the maximum of its launch
overhead, the time of its matrix products and the time of its memory traffic.
It has not been validated on a GPU.
"""

from typing import NamedTuple

from moon_jax.targets import Target
from moon_jax.targets.kernels import Counts

# Launch overhead of a kernel, or of the condition of a loop or a branch.
LAUNCH_SECONDS = 3e-6
EFFICIENCY = .5  # fraction of the published peaks that a kernel reaches


class Estimate(NamedTuple):
  """Estimated seconds of the rows of a round, and their components."""

  rows: float  # number of rows
  seconds: float
  launch_seconds: float  # launch overhead only
  product_seconds: float  # matrix products only
  memory_seconds: float  # memory traffic only
  row_flops: dict[str, float]  # FLOP of matrix products per row, by arithmetic
  row_bytes: float  # bytes read and written per row


def estimate(target: Target, counts: Counts, rows: float) -> Estimate:
  """Returns the estimate of a round with `rows` rows."""
  total = launch = product = memory = num_bytes = 0.
  flops: dict[str, float] = {}
  for kernel in counts.row:
    computing = sum(
        count / (EFFICIENCY * target.peak_flops[arithmetic])
        for arithmetic, count in kernel.flops.items())
    moving = kernel.num_bytes / (EFFICIENCY * target.memory_bandwidth)
    total += kernel.times * max(LAUNCH_SECONDS, computing, moving)
    launch += kernel.times * LAUNCH_SECONDS
    product += kernel.times * computing
    memory += kernel.times * moving
    num_bytes += kernel.times * kernel.num_bytes
    for arithmetic, count in kernel.flops.items():
      flops[arithmetic] = flops.get(arithmetic, 0.) + kernel.times * count
  return Estimate(rows, rows * total, rows * launch, rows * product,
                  rows * memory, flops, num_bytes)
