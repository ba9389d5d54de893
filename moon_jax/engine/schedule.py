"""Plans a round on the host: the table of local steps that devices run.

A job is one client of one run. The table has one row per step and one column
per lane.

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

from moon_jax.algorithms.base import Examples

# Jumping to a number takes as long as drawing this many.
_DRAWS_PER_JUMP = 200

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


class Work(NamedTuple):
  """The J jobs to plan; each client of a run has at most one job."""

  run: np.ndarray  # int [J]
  client: np.ndarray  # int [J]
  num_examples: np.ndarray  # int [J], |D_i|
  num_steps: np.ndarray  # int [J], local steps in this round, 1 or more
  batches: np.ndarray  # int32 [S, B], the batches of all steps of the first
  # job, then of the second, ...; indices of training examples, -1 for padding
  is_received: np.ndarray  # bool [J], False if the client's message is lost
  share: np.ndarray | None = None  # [J], proportional to the weight of the job
  # in the mean of its run; None for `num_examples`
  label_counts: np.ndarray | None = None  # int [J, K], `View.label_counts`
  staleness: np.ndarray | None = None  # int [J], server steps since the client
  # began; None for 0


class Jobs(NamedTuple):
  """The jobs of a round; all fields have length J = D * jobs_per_device.

  Each device has `jobs_per_device` consecutive jobs, in the order of devices.
  A device with fewer jobs has padding at the end: jobs without steps, which no
  lane trains.
  """

  run: np.ndarray  # int32 [J]
  client: np.ndarray  # int32 [J]
  num_examples: np.ndarray  # int32 [J], |D_i|
  num_steps: np.ndarray  # int32 [J], local steps in this round; 0 in padding
  is_received: np.ndarray  # bool [J], False if the message is lost
  weight: np.ndarray  # float32 [J], weight in the mean of its run's messages
  label_counts: np.ndarray  # int32 [J, K], `View.label_counts`
  staleness: np.ndarray  # int32 [J], server steps since the client began


class OwnExamples(NamedTuple):
  """The training examples of J clients, in at most S batches of B each."""

  index_JSB: np.ndarray  # int32, indices of training examples, -1 for padding
  num_batches_J: np.ndarray  # int32


class Table(NamedTuple):
  """A planned round.

  The shapes are the same for all cohorts, so that rounds share a compilation.
  The steps of a job count from 0 to num_steps - 1 in consecutive rows.
  """

  jobs: Jobs
  num_rows: np.ndarray  # int32 [D], the number of rows that each device runs
  num_segments: np.ndarray  # int32 [D]; see `moon_jax.engine.segments`
  bounds: np.ndarray  # int32 [D, jobs_per_device + 1], the first row of each
  # segment, padded with num_rows
  job_TL: np.ndarray  # int32, index into `jobs`, -1 in idle lanes
  step_TL: np.ndarray  # int32, the job's local step, from 0
  examples_TLB: np.ndarray  # int32, training examples, -1 for padding
  own: OwnExamples | None = None  # all examples of the jobs, if needed
  is_personal: np.ndarray | None = None  # bool [D], the same for all devices:
  # whether personal models read examples; None if they always do


def utilization(table: Table) -> float:
  """Returns the fraction of all lanes' steps that train; 0 without rows."""
  lanes_per_device = table.job_TL.shape[1] // len(table.num_rows)
  steps = int(table.num_rows.sum()) * lanes_per_device
  return int(table.jobs.num_steps.sum()) / max(steps, 1)


def local_batches(clients: Sequence[np.ndarray], num_epochs: int,
                  batch_size: int, num_train: int,
                  random: np.random.Generator | None,
                  last_batch: str = 'drop', num_steps: int = 0,
                  fractions: Sequence[float] | None = None
                  ) -> tuple[np.ndarray, np.ndarray]:
  """Returns `Work.batches` of one round, and the steps of each client, int.

  With `num_steps` above 0, these are the first batches of each client, of as
  many epochs as it needs, instead of all batches of `num_epochs`. Clients with
  a fraction below 1 take the first of these steps (`partial_steps`).

  Each epoch draws one random number per training example, and each client
  sorts its examples by their numbers. So the shuffles of a client do not depend
  on the rest of the cohort. Without a generator examples keep their order.

  "drop" leaves out the last short batch of each epoch, "keep" pads it. A client
  with fewer examples than one batch trains on one padded batch per epoch.
  """
  sizes = np.array([len(indices) for indices in clients], np.int64)
  steps = steps_per_epoch(sizes, batch_size, last_batch)
  if num_steps:
    num_epochs = -(-num_steps // steps.min(initial=num_steps))
  total = np.where(num_steps, num_steps, steps * num_epochs)
  if fractions is not None:
    total = partial_steps(total, fractions)
  by_owner, place = _parts(sizes)
  first = np.cumsum(total) - total
  examples = np.concatenate([np.zeros(0, np.int64), *clients]).astype(np.int64)
  batches = np.full((total.sum(), batch_size), -1, np.int32)
  step = place // batch_size
  for epoch in range(num_epochs):
    left = np.minimum(steps, total - epoch * steps)
    at = order = np.flatnonzero((left > 0)[by_owner])
    if random is not None:
      numbers = numbers_at(random, num_train, examples[at])
      order = at[np.lexsort((numbers, by_owner[at]))]
    is_kept = step[at] < left[by_owner[at]]
    at, order = at[is_kept], order[is_kept]
    owner = by_owner[at]
    batches[first[owner] + epoch * steps[owner] + step[at],
            place[at] % batch_size] = examples[order]
  return batches, total


def partial_steps(num_steps: np.ndarray, fractions: Sequence[float] | np.ndarray
                  ) -> np.ndarray:
  """Returns fractions of local steps, rounded, and at least one; int [J]."""
  return np.maximum(1, np.rint(num_steps * np.asarray(fractions)).astype(int))


def _parts(sizes):
  """Returns the part of each item, and its place in its part, from 0."""
  part = np.repeat(np.arange(len(sizes)), sizes)
  return part, np.arange(len(part)) - (np.cumsum(sizes) - sizes)[part]


def numbers_at(random: np.random.Generator, count: int,
               places: np.ndarray) -> np.ndarray:
  """Returns `random.random(count)[places]`, with the same bits and state after.

  If few places are asked for, it jumps over the others: each number takes one
  step of PCG64, the generator of `numpy.random.default_rng`. Places may repeat.
  """
  generator = random.bit_generator
  if len(places) * _DRAWS_PER_JUMP >= count or not isinstance(
      generator, np.random.PCG64):
    return random.random(count)[places]
  unique, inverse = np.unique(places, return_inverse=True)
  is_first = np.diff(unique, prepend=-2) != 1
  starts = np.flatnonzero(is_first)
  numbers, position = np.empty(len(unique)), 0
  for start, end in zip(starts, [*starts[1:], len(unique)]):
    generator.advance(int(unique[start]) - position)
    numbers[start:end] = random.random(end - start)
    position = int(unique[end - 1]) + 1
  generator.advance(count - position)
  return numbers[inverse]


def steps_per_epoch(num_examples, batch_size: int, last_batch: str = 'drop'):
  """Returns the local steps per epoch of a client or an array of clients."""
  if last_batch == 'keep':
    return -(-num_examples // batch_size)
  return np.maximum(1, num_examples // batch_size)


def share(weighting: str, num_examples: np.ndarray,
          num_batches: np.ndarray) -> np.ndarray:
  """Returns `Work.share` for a choice of --weighting; batches per epoch."""
  return {'examples': num_examples, 'batches': num_batches,
          'uniform': np.ones_like(num_examples)}[weighting]


def shape(steps: Sequence[int], cohort_size: int, num_lanes: int,
          batch_size: int, num_devices: int = 1) -> Shape:
  """Returns a shape that is large enough for every cohort.

  Longest-first packing needs at most sum / L + (1 - 1 / L) max rows, which is
  largest if the cohort has the largest clients. The number of rows is rounded
  up by at most an eighth, so that seeds, whose partitions differ slightly,
  share a compiled program. A device takes at most about 1.25 times its share
  of the jobs, since client state is moved for that many jobs on each device.
  Packing skips the lanes of full devices, and the bound holds nevertheless
  (docs/numerics.md has the proof). `steps` are the local steps
  of every client that can be sampled.
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
      jobs_per_device=min(
          cohort_size, math.ceil(1.25 * cohort_size / num_devices) + 1),
      num_devices=num_devices)


def places(shapes: Sequence[Shape], num_lanes: int,
           num_devices: int) -> tuple[Shape, list[Place]]:
  """Places the tables of runs, largest first, where the fewest rows are.

  A device has as many lanes as any run has on one, or more. Returns the shape
  of the program's table, and the place of each run.
  """
  rows_DL = np.zeros((num_devices, num_lanes // num_devices), np.int64)
  jobs_D = np.zeros(num_devices, np.int64)
  place_of_run: dict[int, Place] = {}
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
    place_of_run[run] = Place(shape, np.arange(num_lanes).reshape(
        rows_DL.shape)[block].reshape(-1))
  joined = Shape(int(rows_DL.max()), num_lanes, shapes[0].batch_size,
                 int(jobs_D.max()), num_devices)
  return joined, [place_of_run[run] for run in range(len(shapes))]


def rows(num_steps: np.ndarray, shape: Shape) -> np.ndarray:
  """Returns the number of table rows that each device runs, int32 [D]."""
  lane_J, row_J = _pack(num_steps, shape)
  rows_D = np.zeros(shape.num_devices, np.int32)
  np.maximum.at(rows_D, lane_J * shape.num_devices // shape.num_lanes,
                row_J + num_steps)
  return rows_D


def plan(work: Work, shape: Shape, places: Sequence[Place] = ()) -> Table:
  """Returns the table of a round; raises a ValueError if it is too small.

  `places` has the lanes of each run; without it all jobs share all lanes.
  """
  lane_J, row_J = _assign(work, shape, places)
  device_J = lane_J * shape.num_devices // shape.num_lanes
  order = np.lexsort((lane_J, work.run if len(places) else 0 * device_J,
                      device_J))
  device, place = _parts(np.bincount(device_J, minlength=shape.num_devices))
  slot_J = np.empty(len(order), np.int64)
  slot_J[order] = device * shape.jobs_per_device + place
  steps = work.num_steps
  job_S, step_S = _parts(steps)
  at = row_J[job_S] + step_S, lane_J[job_S]
  size = shape.num_rows, shape.num_lanes
  job_TL = np.full(size, -1, np.int32)
  job_TL[at] = slot_J[job_S]
  step_TL = np.zeros(size, np.int32)
  step_TL[at] = step_S
  examples_TLB = np.full((*size, shape.batch_size), -1, np.int32)
  examples_TLB[at] = work.batches
  num_segments, bounds = _segments(row_J + steps, device_J, shape)
  return Table(_jobs(work, slot_J, shape), bounds[:, -1], num_segments, bounds,
               job_TL, step_TL, examples_TLB)


def _assign(work, shape, places):
  if not len(places):
    return _pack(work.num_steps, shape)
  lane_J, row_J = np.zeros((2, len(work.run)), np.int64)
  load_L = np.zeros(shape.num_lanes, np.int64)
  for run in np.unique(work.run):
    at, place = np.flatnonzero(work.run == run), places[run]
    lane, row = _pack(work.num_steps[at], place.shape)
    lane_J[at] = place.lanes[lane]
    row_J[at] = load_L[lane_J[at]] + row
    np.add.at(load_L, lane_J[at], work.num_steps[at])
  return lane_J, row_J


def _pack(num_steps, shape):
  """Returns the lane of each job and the row at which the job starts."""
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


def _segments(end_J, device_J, shape):
  """Returns the number of segments of each device, and their first rows.

  In a lane each job starts at the end of the previous job, so the ends of jobs
  are all the bounds of segments.
  """
  bounds = np.zeros((shape.num_devices, shape.jobs_per_device + 1), np.int32)
  num_segments = np.zeros(shape.num_devices, np.int32)
  for d in range(shape.num_devices):
    ends = np.unique(end_J[device_J == d])
    num_segments[d] = len(ends)
    bounds[d, 1:1 + len(ends)] = ends
    bounds[d, 1 + len(ends):] = ends.max(initial=0)
  return num_segments, bounds


def _jobs(work, slot_J, shape):
  """Returns the jobs in the slots of their devices, with padding."""
  def column(values, dtype=np.int32):
    slots = np.zeros((shape.num_devices * shape.jobs_per_device,
                      *values.shape[1:]), dtype)
    slots[slot_J] = values
    return slots

  run, is_received = column(work.run), column(work.is_received, bool)
  share = work.num_examples if work.share is None else work.share
  weight = column(share, share.dtype) * is_received
  total = np.bincount(run, weight)
  total = np.where(total > 0, total, 1)[run]  # 0 if no message is received
  label_counts = (np.zeros((len(slot_J), 0)) if work.label_counts is None
                  else work.label_counts)
  return Jobs(run, column(work.client), column(work.num_examples),
              column(work.num_steps), is_received,
              (weight / total).astype(np.float32), column(label_counts),
              column(np.zeros(len(slot_J)) if work.staleness is None
                     else work.staleness))


def without_steps(jobs: Jobs, own: OwnExamples, shape: Shape) -> Table:
  """Returns a table of jobs that do not train, for functions of their clients.

  `jobs` and `own` are split evenly among the devices.
  """
  devices, lanes = np.zeros(shape.num_devices, np.int32), (1, shape.num_lanes)
  idle_TL = np.full(lanes, -1, np.int32)
  return Table(
      jobs, devices, devices, devices[:, None], idle_TL,
      np.zeros(lanes, np.int32),
      np.full((*lanes, shape.batch_size), -1, np.int32), own)


def steps_of(table: Table, run: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rows and the lanes of a run's steps.

  They are in the order of the rows of the run's table alone, whatever other
  runs the program has, so that sums over steps have the same bits.
  """
  is_own_TL = (table.job_TL >= 0) & (table.jobs.run[table.job_TL] == run)
  row, lane = np.nonzero(is_own_TL)
  first_L = is_own_TL.argmax(0)
  order = np.lexsort((lane, row - first_L[lane]))
  return row[order], lane[order]


def own_examples(clients: Sequence[np.ndarray], max_examples: int
                 ) -> OwnExamples:
  """Returns all examples of the clients in batches."""
  size = min(Examples.BATCH_SIZE, max_examples)
  index_JN = np.full(
      (len(clients), -(-max_examples // size) * size), -1, np.int32)
  for row, indices in zip(index_JN, clients):
    row[:len(indices)] = indices
  return OwnExamples(
      index_JN.reshape(len(clients), -1, size),
      np.array([-(-len(indices) // size) for indices in clients], np.int32))
