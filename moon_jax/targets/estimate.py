"""Estimates a round's time from what a compiled program launches.

Each kernel takes the longest of three times: to launch it, to compute its
products, and to move its bytes: a roofline model, not validated on a GPU.
"""

from typing import NamedTuple

from moon_jax.targets import Target
from moon_jax.targets.kernels import Counts

LAUNCH_SECONDS = 3e-6  # of a kernel, or of a loop's or a branch's condition
EFFICIENCY = .5  # of the published peaks that a kernel reaches


class Estimate(NamedTuple):
  """Seconds of a round's rows, and what makes them up."""

  rows: float
  seconds: float
  launch_seconds: float  # if launches were all
  product_seconds: float  # if products were all
  memory_seconds: float  # if moving bytes were all
  row_flops: dict[str, float]  # products of a row, by arithmetic
  row_bytes: float


def estimate(target: Target, counts: Counts, rows: float) -> Estimate:
  """Returns the estimate of a round of so many rows."""
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
