"""Joins the tables of several runs into the table of one program.

Each run keeps the table that it would have alone: its clients train in the same
order, on as many lanes and devices. So it has the same numbers as alone, up to
rounding where XLA computes several lanes of a device together. The tables stand
next to one another on different lanes, and one below another where lanes are
few:

    device 0          device 1
    lane 0   lane 1   lane 2   lane 3
    run 0    run 1    run 2    run 3
    run 4    run 4    run 5    run 5      (runs with two lanes)

`moon_jax.engine` lists the axis letters; here L, T and J are those of the run,
or of all runs together, as the comment says.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.engine import schedule
from moon_jax.engine.packing import Shape
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Jobs
from moon_jax.engine.schedule import Table

_NOWHERE = -1  # the slot of padding


class Place(NamedTuple):
  """The place of a run's table in the table of all runs."""

  shape: Shape  # of the run's own table
  lanes: np.ndarray  # int [L of the run], among the lanes of all runs


class Joined(NamedTuple):
  """A round of several runs; runs that do not train have empty arrays."""

  table: Table  # of all runs
  slots: list[np.ndarray]  # for each run int [J of the run], the indices of its
  # jobs among those of all runs, -1 for padding
  rows: list[np.ndarray]  # for each run int [L of the run, 2], the first of its
  # rows on each lane, and the row after the last


def places(shapes: Sequence[Shape], num_lanes: int,
           num_devices: int) -> tuple[Shape, list[Place]]:
  """Places the tables of runs, largest first, where the fewest rows are.

  Args:
    shapes: for each run the shape of its own table.
    num_lanes: of all runs; each device has at least as many lanes as any run
      has on a device.
    num_devices: a divisor of `num_lanes`, and at least the devices of any run.

  Returns:
    The shape of the joined table, large enough for every round of all runs,
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


def join(tables: Sequence[Table | None], where: Sequence[Place],
         shape: Shape, max_examples: int) -> Joined:
  """Returns the table of all runs.

  Args:
    tables: for each run its own table; None if it does not train.
    where: for each run the place of its table.
    shape: of the joined table.
    max_examples: the number of examples of the largest client of any run.
  """
  per_device = shape.num_lanes // shape.num_devices
  size = shape.num_rows, shape.num_lanes
  job_TL = np.full(size, -1, np.int32)
  step_TL = np.zeros(size, np.int32)
  examples_TLB = np.full((*size, shape.batch_size), -1, np.int32)
  jobs = Jobs(*[
      np.zeros(shape.num_devices * shape.jobs_per_device, dtype)
      for dtype in (np.int32, np.int32, np.int32, np.int32, bool, np.float32)])
  load_L = np.zeros(shape.num_lanes, np.int64)
  count_D = np.zeros(shape.num_devices, np.int64)
  slots, rows = [], []
  for run, (table, place) in enumerate(zip(tables, where)):
    if table is None:
      slots.append(np.zeros(0, np.int64))
      rows.append(np.zeros((0, 2), np.int64))
      continue
    device_J = np.repeat(
        place.lanes.reshape(place.shape.num_devices, -1)[:, 0] // per_device,
        place.shape.jobs_per_device)
    slot_J = np.full(len(device_J), _NOWHERE, np.int64)
    for j in np.flatnonzero(table.jobs.num_steps):
      device = device_J[j]
      slot_J[j] = device * shape.jobs_per_device + count_D[device]
      count_D[device] += 1
    is_job_J = slot_J != _NOWHERE
    theirs = table.jobs._replace(run=np.full_like(table.jobs.run, run))
    for column, values in zip(jobs, theirs):
      column[slot_J[is_job_J]] = values[is_job_J]
    slots.append(slot_J)
    begin_L = load_L[place.lanes]
    for lane, to in enumerate(place.lanes):
      n = np.count_nonzero(table.job_TL[:, lane] >= 0)  # the first rows
      at = slice(load_L[to], load_L[to] + n), to
      job_TL[at] = slot_J[table.job_TL[:n, lane]]
      step_TL[at] = table.step_TL[:n, lane]
      examples_TLB[at] = table.examples_TLB[:n, lane]
      load_L[to] += n
    rows.append(np.stack([begin_L, load_L[place.lanes]], axis=1))
  num_segments, bounds = _segments(job_TL, shape)
  return Joined(
      Table(jobs, load_L.reshape(shape.num_devices, -1).max(1).astype(np.int32),
            num_segments, bounds, job_TL, step_TL, examples_TLB,
            _own(tables, slots, len(jobs.run), max_examples)),
      slots, rows)


def _segments(job_TL, shape):
  """Returns the number of segments of each device, and their first rows."""
  after_TL = np.concatenate([job_TL[1:], np.full_like(job_TL[:1], -1)])
  ends_TL = (job_TL >= 0) & (job_TL != after_TL)
  bounds = np.zeros((shape.num_devices, shape.jobs_per_device + 1), np.int32)
  num_segments = np.zeros(shape.num_devices, np.int32)
  for d, ends in enumerate(np.split(ends_TL, shape.num_devices, axis=1)):
    rows = 1 + np.flatnonzero(ends.any(1))
    num_segments[d] = len(rows)
    bounds[d, 1:1 + len(rows)] = rows
    bounds[d, 1 + len(rows):] = rows.max(initial=0)
  return num_segments, bounds


def _own(tables, slots, num_jobs, max_examples):
  """Returns all examples of all jobs, if the runs' tables have them."""
  used = [(table.own, slot_J) for table, slot_J in zip(tables, slots)
          if table is not None and table.own is not None]
  if not used:
    return None
  examples = [np.zeros(0, np.int32)] * num_jobs
  for own, slot_J in used:
    for j in np.flatnonzero(slot_J != _NOWHERE):
      index = own.index_JSB[j].reshape(-1)
      examples[slot_J[j]] = index[index >= 0]
  return schedule.own_examples(examples, max_examples)


def metrics_of(run: int, place: Place, joined: Joined,
               metrics: RoundMetrics) -> RoundMetrics:
  """Returns the metrics of one run, as its own table would give them.

  Args:
    run: index of the run.
    place: of its table.
    joined: the round of all runs.
    metrics: of the round, NumPy arrays.
  """
  slot_J, rows_L = joined.slots[run], joined.rows[run]
  is_job_J = slot_J != _NOWHERE

  def rows(x_TL):
    own_TL = np.zeros((place.shape.num_rows, len(place.lanes)), x_TL.dtype)
    for lane, (at, (first, end)) in enumerate(zip(place.lanes, rows_L)):
      own_TL[:end - first, lane] = x_TL[first:end, at]
    return own_TL

  def jobs(x_J, padding):
    own_J = np.full(len(slot_J), padding, x_J.dtype)
    own_J[is_job_J] = x_J[slot_J[is_job_J]]
    return own_J

  return RoundMetrics(
      loss_TL=rows(metrics.loss_TL),
      extra_TL={name: rows(x_TL) for name, x_TL in metrics.extra_TL.items()},
      drift_J=jobs(metrics.drift_J, 0),
      finite_J=jobs(metrics.finite_J, True),
      finite_R=metrics.finite_R[run:run + 1],
      cosine_R=metrics.cosine_R[run:run + 1],
      cosine_J=jobs(metrics.cosine_J, 0) if len(metrics.cosine_J) else (),
      models_J=())


@jax.jit
def rows_of(tree_J: Any, slot_J: np.ndarray) -> Any:
  """Returns the rows of a run's jobs; those of padding are arbitrary."""
  return jax.tree.map(lambda x_J: x_J[slot_J], tree_J)
