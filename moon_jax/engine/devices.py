"""The devices that share a round: one mesh axis, over which lanes are split.

Every device trains its own lanes; sums over the lanes meet once a round.
"""

from typing import Any

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

AXIS = 'devices'
SPLIT = PartitionSpec(AXIS)  # by the first axis
WHOLE = PartitionSpec()  # the same on each device


def mesh(num_lanes: int = 1) -> Mesh:
  """As many devices as there are, and as divide the lanes evenly."""
  devices = jax.local_devices()
  count = max(n for n in range(1, len(devices) + 1) if num_lanes % n == 0)
  return Mesh(np.array(devices[:count]), AXIS, axis_types=(AxisType.Auto,))


def put(tree: Any, on: Mesh, spec: PartitionSpec = WHOLE) -> Any:
  """Arrays, on each device or split over them by their first axis."""
  return jax.device_put(tree, NamedSharding(on, spec))
