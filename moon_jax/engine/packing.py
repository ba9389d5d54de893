"""Packs the jobs of a round onto lanes, and bounds the size of the table.

Jobs are assigned longest first, each to the lane that is free soonest (Graham,
1969, https://doi.org/10.1137/0117039), so that lanes finish at about the same
time. Swapping a few jobs between lanes then shortens the longest lane. Each
device has consecutive lanes, and trains the jobs of its lanes.

In a program of several runs, each run keeps the lanes and the order of jobs
that it has alone. So it has the same numbers as alone, up to rounding where XLA
computes several lanes of a device together. Runs are next to one another on
different lanes, and one below another where lanes are few (`places`):

    device 0          device 1
    lane 0   lane 1   lane 2   lane 3
    run 0    run 1    run 2    run 3
    run 4    run 4    run 5    run 5      (runs with two lanes)
"""

from collections.abc import Sequence
import heapq
import math
from typing import NamedTuple

import numpy as np

# With more jobs per lane, swapping jobs gains less than 1%.
_MAX_JOBS_PER_LANE_TO_SWAP = 32


class Shape(NamedTuple):
  """The shape that the tables of all rounds share."""

  num_rows: int  # T
  num_lanes: int  # L
  batch_size: int  # B
  jobs_per_device: int
  num_devices: int = 1  # D, a divisor of L


class Place(NamedTuple):
  """The lanes of a run in a program of several runs."""

  shape: Shape  # of the table of the run alone
  lanes: np.ndarray  # int [L of the run], among the lanes of the program


def shape(steps: Sequence[int], cohort_size: int, num_lanes: int,
          batch_size: int, num_devices: int = 1) -> Shape:
  """Returns a shape that is large enough for every cohort.

  Longest-first packing needs at most sum / L + (1 - 1 / L) max rows, which is
  largest if the cohort has the largest clients. The number of rows is rounded
  up by at most an eighth, so that seeds, whose partitions differ slightly,
  share a compiled program. A device takes at most about 1.25 times its share
  of the jobs, since client state is moved for that many jobs on each device.
  Packing skips the lanes of full devices, and the bound holds nevertheless
  (docs/numerics.md has the proof).

  Args:
    steps: local steps per round of every client that can be sampled.
    cohort_size: jobs per round, of all runs together.
    num_lanes: L.
    batch_size: B.
    num_devices: D, a divisor of L.
  """
  largest = np.sort(np.asarray(steps))[::-1][:cohort_size].tolist()
  num_rows = largest[0]
  if num_lanes < len(largest):
    num_rows = math.ceil(
        sum(largest) / num_lanes + (1 - 1 / num_lanes) * largest[0])
  unit = max(1, 2 ** (int(num_rows).bit_length() - 4))
  return Shape(
      num_rows=int(-(-num_rows // unit) * unit), num_lanes=num_lanes,
      batch_size=batch_size,
      jobs_per_device=jobs_per_device(cohort_size, num_devices),
      num_devices=num_devices)


def jobs_per_device(cohort_size: int, num_devices: int) -> int:
  """Returns the most jobs of a round that one device takes; see `shape`."""
  return min(cohort_size, math.ceil(1.25 * cohort_size / num_devices) + 1)


def places(shapes: Sequence[Shape], num_lanes: int,
           num_devices: int) -> tuple[Shape, list[Place]]:
  """Places the tables of runs, largest first, where the fewest rows are.

  Args:
    shapes: for each run the shape of its own table.
    num_lanes: of all runs; each device has at least as many lanes as any run
      has on a device.
    num_devices: a divisor of `num_lanes`, and at least the devices of any run.

  Returns:
    The shape of the program's table, large enough for every round of all runs,
    and the place of each run.
  """
  rows_DL = np.zeros((num_devices, num_lanes // num_devices), np.int64)
  jobs_D = np.zeros(num_devices, np.int64)
  found: dict[int, Place] = {}
  order = sorted(range(len(shapes)), key=lambda r: -shapes[r].num_rows)
  for run in order:
    shape = shapes[run]
    count, width = shape.num_devices, shape.num_lanes // shape.num_devices
    first, lane = min(
        ((d, lane) for d in range(0, num_devices - count + 1, count)
         for lane in range(0, rows_DL.shape[1] - width + 1, width)),
        key=lambda at: rows_DL[
            at[0]:at[0] + count, at[1]:at[1] + width].max())
    block = slice(first, first + count), slice(lane, lane + width)
    rows_DL[block] += shape.num_rows
    jobs_D[first:first + count] += shape.jobs_per_device
    found[run] = Place(shape, np.arange(num_lanes).reshape(
        rows_DL.shape)[block].reshape(-1))
  joined = Shape(int(rows_DL.max()), num_lanes, shapes[0].batch_size,
                 int(jobs_D.max()), num_devices)
  return joined, [found[run] for run in range(len(shapes))]


def rows(num_steps: np.ndarray, shape: Shape) -> np.ndarray:
  """Returns the number of table rows that each device runs, int32 [D].

  Raises:
    ValueError: if the table is too small for the jobs.
  """
  return rows_per_device(num_steps, *assign(num_steps, shape), shape)


def rows_per_device(num_steps: np.ndarray, lane_J: np.ndarray,
                    row_J: np.ndarray, shape: Shape) -> np.ndarray:
  """Returns the number of rows that each device runs for assigned jobs."""
  rows_D = np.zeros(shape.num_devices, np.int32)
  np.maximum.at(rows_D, lane_J * shape.num_devices // shape.num_lanes,
                row_J + num_steps)
  return rows_D


def assign(num_steps: np.ndarray, shape: Shape
           ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the lane of each job and the row at which the job starts.

  Raises:
    ValueError: if the table is too small for the jobs.
  """
  lane_J = _swap_jobs(num_steps, _longest_first(num_steps, shape),
                      shape.num_lanes)
  order = np.lexsort((-num_steps, lane_J))
  end_J = np.cumsum(num_steps[order])
  load_L = np.bincount(lane_J, num_steps, shape.num_lanes).astype(np.int64)
  if load_L.max(initial=0) > shape.num_rows:
    raise _table_too_small(num_steps, shape)
  row_J = np.empty(len(order), np.int64)
  row_J[order] = end_J - num_steps[order] - (
      np.cumsum(load_L) - load_L)[lane_J[order]]
  return lane_J, row_J


def _longest_first(num_steps, shape):
  """Assigns jobs to the lane that is free soonest, skipping full devices."""
  lane_J = np.zeros(len(num_steps), np.int64)
  lanes_per_device = shape.num_lanes // shape.num_devices
  free = [(0, lane) for lane in range(shape.num_lanes)]  # a heap
  capacity = [shape.jobs_per_device] * shape.num_devices
  steps = num_steps.tolist()
  for j in np.argsort(-num_steps, kind='stable').tolist():
    while free and not capacity[free[0][1] // lanes_per_device]:
      heapq.heappop(free)
    if not free:
      raise _table_too_small(num_steps, shape)
    load, lane = free[0]
    lane_J[j] = lane
    capacity[lane // lanes_per_device] -= 1
    heapq.heapreplace(free, (load + steps[j], lane))
  return lane_J


def _swap_jobs(num_steps, lane_J, num_lanes):
  if len(lane_J) > _MAX_JOBS_PER_LANE_TO_SWAP * num_lanes:
    return lane_J
  lane_J = lane_J.copy()
  lower_bound = -(-num_steps.sum() // num_lanes)
  for _ in range(len(lane_J)):
    load_L = np.bincount(lane_J, num_steps, num_lanes)
    longest = load_L.argmax()
    inside = np.flatnonzero(lane_J == longest)
    outside = np.flatnonzero(lane_J != longest)
    if load_L[longest] <= lower_bound or not len(outside):
      break
    moved = num_steps[inside][:, None] - num_steps[outside][None]
    longer = np.maximum(load_L[longest] - moved,
                        load_L[lane_J[outside]][None] + moved)
    i, k = np.unravel_index(longer.argmin(), longer.shape)
    if longer[i, k] >= load_L[longest]:
      break
    lane_J[inside[i]], lane_J[outside[k]] = lane_J[outside[k]], longest
  return lane_J


def _table_too_small(num_steps, shape):
  return ValueError(
      f'the table must be large enough for its {len(num_steps)} jobs, got '
      f'{shape}; use the shape that schedule.shape returns')
