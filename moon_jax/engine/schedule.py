"""Plans a round on the host: which lane trains which client when.

A job is one client of one run, a table has a row a step and a column a lane.
Jobs are put on lanes longest first, each on the lane that is free soonest
(Graham, 1969, https://doi.org/10.1137/0117039), so that lanes end together; a
few jobs are then exchanged between lanes, which brings their ends nearer.
Lanes are split over the devices in their order, and jobs go with their lane.
"""

from collections.abc import Sequence
import heapq
import math
from typing import NamedTuple

import numpy as np

_OWN_BATCH = 100  # examples at a time, of all that a client has
_FEW_JOBS = 32  # a lane, up to which exchanging them may gain a hundredth


class Work(NamedTuple):
  """The jobs to plan, of J clients; a client of a run stands here once."""

  run: np.ndarray  # int [J]
  client: np.ndarray  # int [J]
  num_examples: np.ndarray  # int [J], |D_i|
  num_steps: np.ndarray  # int [J], local steps of this round, 1 or more
  batches: np.ndarray  # int32 [S, B], of all steps of the first job, then of
  # the second ...; indices of training examples, -1 for padding
  is_received: np.ndarray  # bool [J], False where what a client sends is lost


class Jobs(NamedTuple):
  """The jobs of a round; all fields have the length J.

  As many for each device, in the order of devices. Where it has fewer they end
  in padding: jobs of no steps, in no lane.
  """

  run: np.ndarray  # int32 [J]
  client: np.ndarray  # int32 [J]
  num_examples: np.ndarray  # int32 [J], |D_i|
  num_steps: np.ndarray  # int32 [J], local steps of this round; 0 in padding
  is_received: np.ndarray  # bool [J], whether the server hears of it
  weight: np.ndarray  # float32 [J], in the mean over what its run received


class OwnExamples(NamedTuple):
  """The training examples of J clients, in up to S batches of B each."""

  index_JSB: np.ndarray  # int32, into the training set, -1 for padding
  num_batches_J: np.ndarray  # int32


class Table(NamedTuple):
  """A planned round. Its shapes depend on no cohort, so nothing recompiles.

  A job's first row has step 0, its last num_steps - 1.
  """

  jobs: Jobs
  num_rows: np.ndarray  # int32 [D]; rows beyond are never run
  num_segments: np.ndarray  # int32 [D], see `moon_jax.engine.segments`
  bounds: np.ndarray  # int32 [D, jobs_per_device + 1], the first row of each
  # segment, then num_rows as padding
  job_TL: np.ndarray  # int32, an index into jobs, -1 where a lane idles
  step_TL: np.ndarray  # int32, the job's local step, from 0
  examples_TLB: np.ndarray  # int32, indices of training examples, -1 padding
  own: OwnExamples | None = None  # of the jobs, where a round needs them all


class Shape(NamedTuple):
  """What the tables of all rounds have in common."""

  num_rows: int  # T
  num_lanes: int  # L
  batch_size: int  # B
  jobs_per_device: int
  num_devices: int = 1  # divides the lanes


def local_batches(clients: Sequence[np.ndarray], num_epochs: int,
                  batch_size: int, num_train: int,
                  random: np.random.Generator | None
                  ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the clients' batches of one round, reshuffled each epoch.

  The last short batch of an epoch is dropped. A client with less than one
  batch trains on what it has: one padded batch an epoch.

  Each epoch every training example draws a number, and a client takes its
  examples in the order of theirs: who else takes part changes nothing.

  Args:
    clients: for each the indices of its training examples, one or more.
    num_epochs: local epochs.
    batch_size: B.
    num_train: training examples of all clients there are.
    random: the generator of this round; None does not shuffle, so that each
      epoch has the same batches, in the clients' order of examples.

  Returns:
    int32 [S, B], the batches of the first client, then of the second ...; -1
    marks padding. And int [len(clients)], how many steps each has.
  """
  sizes = np.array([len(indices) for indices in clients], np.int64)
  steps = steps_per_epoch(sizes, batch_size)
  owner = np.repeat(np.arange(len(clients)), sizes)
  place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
  is_kept = place < (steps * batch_size)[owner]
  owner, place = owner[is_kept], place[is_kept]
  first = np.cumsum(steps * num_epochs) - steps * num_epochs
  row = first[owner] + place // batch_size
  examples = np.concatenate([np.zeros(0, np.int64), *clients]).astype(np.int64)
  batches = np.full(((steps * num_epochs).sum(), batch_size), -1, np.int32)
  by_owner = np.repeat(np.arange(len(clients)), sizes)
  order = np.arange(len(examples))
  for epoch in range(num_epochs):
    if random is not None:
      order = np.lexsort((random.random(num_train)[examples], by_owner))
    batches[row + epoch * steps[owner], place % batch_size] = (
        examples[order][is_kept])
  return batches, steps * num_epochs


def steps_per_epoch(num_examples, batch_size: int):
  """Of one client, or of an array of them."""
  return np.maximum(1, num_examples // batch_size)


def shape(steps: Sequence[int], cohort_size: int, num_lanes: int,
          batch_size: int, num_devices: int = 1) -> Shape:
  """A table for the longest round there can be, whatever the cohort.

  Longest first ends by sum / L + (1 - 1 / L) max; here with the largest
  clients as the cohort. Rounded up by at most an eighth, so that seeds, whose
  partitions differ a little, share a compiled program. A device takes a quarter
  more than its share of the jobs at most, since what clients keep is moved for
  so many; the others may then have to do without one.

  Args:
    steps: local steps a round of every client that can be sampled.
    cohort_size: clients sampled a round, all runs together.
    num_lanes: L.
    batch_size: B.
    num_devices: D, a divisor of L.
  """
  largest = sorted(steps, reverse=True)[:cohort_size]
  rows = largest[0]
  if num_lanes < len(largest):
    lanes = num_lanes * (1 - 1 / num_devices) if num_devices > 1 else num_lanes
    rows = math.ceil(sum(largest) / lanes + (1 - 1 / lanes) * largest[0])
  unit = max(1, 2 ** (int(rows).bit_length() - 4))
  return Shape(
      num_rows=int(-(-rows // unit) * unit), num_lanes=num_lanes,
      batch_size=batch_size,
      jobs_per_device=jobs_per_device(cohort_size, num_devices),
      num_devices=num_devices)


def jobs_per_device(cohort_size: int, num_devices: int) -> int:
  """Returns the most jobs that a device takes of a round; see `shape`."""
  return min(cohort_size, math.ceil(1.25 * cohort_size / num_devices) + 1)


def plan(work: Work, shape: Shape, weighting: str = 'examples') -> Table:
  """Puts the jobs on lanes.

  Args:
    work: the jobs.
    shape: of the table; `shape` gives one that is large enough.
    weighting: what a job weighs in its run's mean: "examples" or "uniform".

  Raises:
    ValueError: where the table is too small.
  """
  lane_J, row_J = _assign(work.num_steps, shape)
  device_of_J = lane_J * shape.num_devices // shape.num_lanes
  order = np.argsort(lane_J, kind='stable')  # by device, as lanes are
  device_J = device_of_J[order]
  count_D = np.bincount(device_J, minlength=shape.num_devices)
  before_D = np.cumsum(count_D) - count_D
  slot_J = (device_J * shape.jobs_per_device
            + np.arange(len(order)) - before_D[device_J])
  jobs = _jobs(work, order, slot_J, shape, weighting)

  slot_of = np.empty(len(order), np.int64)
  slot_of[order] = slot_J
  steps = work.num_steps
  job_S = np.repeat(np.arange(len(steps)), steps)
  step_S = np.arange(len(job_S)) - np.repeat(np.cumsum(steps) - steps, steps)
  at = row_J[job_S] + step_S, lane_J[job_S]
  size = shape.num_rows, shape.num_lanes
  job_TL = np.full(size, -1, np.int32)
  job_TL[at] = slot_of[job_S]
  step_TL = np.zeros(size, np.int32)
  step_TL[at] = step_S
  examples_TLB = np.full((*size, shape.batch_size), -1, np.int32)
  examples_TLB[at] = work.batches
  num_rows = _rows(steps, lane_J, row_J, shape)
  num_segments, bounds = _segments(row_J + steps, device_of_J, shape)
  return Table(jobs, num_rows, num_segments, bounds, job_TL, step_TL,
               examples_TLB)


def _segments(end_J, device_J, shape):
  """Segments of each device: a lane's job begins where the one before ends."""
  bounds = np.zeros((shape.num_devices, shape.jobs_per_device + 1), np.int32)
  num_segments = np.zeros(shape.num_devices, np.int32)
  for d in range(shape.num_devices):
    ends = np.unique(end_J[device_J == d])
    num_segments[d] = len(ends)
    bounds[d, 1:1 + len(ends)] = ends
    bounds[d, 1 + len(ends):] = ends.max(initial=0)
  return num_segments, bounds


def rows(num_steps: np.ndarray, shape: Shape) -> np.ndarray:
  """How many rows each device runs of a table of jobs of so many steps.

  Raises:
    ValueError: where the table is too small.
  """
  return _rows(num_steps, *_assign(num_steps, shape), shape)


def _rows(num_steps, lane_J, row_J, shape):
  rows_D = np.zeros(shape.num_devices, np.int32)
  np.maximum.at(rows_D, lane_J * shape.num_devices // shape.num_lanes,
                row_J + num_steps)
  return rows_D


def _assign(num_steps, shape):
  """The lane of each job, and the row at which it starts."""
  lane_J = _exchanged(num_steps, _longest_first(num_steps, shape),
                      shape.num_lanes)
  order = np.lexsort((-num_steps, lane_J))
  end_J = np.cumsum(num_steps[order])
  load_L = np.bincount(lane_J, num_steps, shape.num_lanes).astype(np.int64)
  if load_L.max(initial=0) > shape.num_rows:
    raise _too_small(num_steps, shape)
  row_J = np.empty(len(order), np.int64)
  row_J[order] = end_J - num_steps[order] - (
      np.cumsum(load_L) - load_L)[lane_J[order]]
  return lane_J, row_J


def _longest_first(num_steps, shape):
  """Each job on the lane that is free soonest, of a device that has room."""
  lane_J = np.zeros(len(num_steps), np.int64)
  lanes_per_device = shape.num_lanes // shape.num_devices
  free = [(0, lane) for lane in range(shape.num_lanes)]  # a heap
  room = [shape.jobs_per_device] * shape.num_devices
  steps = num_steps.tolist()
  for j in np.argsort(-num_steps, kind='stable').tolist():
    while free and not room[free[0][1] // lanes_per_device]:
      heapq.heappop(free)
    if not free:
      raise _too_small(num_steps, shape)
    load, lane = free[0]
    lane_J[j] = lane
    room[lane // lanes_per_device] -= 1
    heapq.heapreplace(free, (load + steps[j], lane))
  return lane_J


def _exchanged(num_steps, lane_J, num_lanes):
  """Exchanges jobs of the longest lane for others while that shortens it.

  Where jobs are many, longest first leaves nothing to gain.
  """
  if len(lane_J) > _FEW_JOBS * num_lanes:
    return lane_J
  lane_J = lane_J.copy()
  shortest = -(-num_steps.sum() // num_lanes)
  for _ in range(len(lane_J)):
    load_L = np.bincount(lane_J, num_steps, num_lanes)
    longest = load_L.argmax()
    mine, others = (np.flatnonzero(of) for of in (
        lane_J == longest, lane_J != longest))
    if load_L[longest] <= shortest or not len(others):
      break
    moved = num_steps[mine][:, None] - num_steps[others][None]
    longer = np.maximum(load_L[longest] - moved,
                        load_L[lane_J[others]][None] + moved)
    i, k = np.unravel_index(longer.argmin(), longer.shape)
    if longer[i, k] >= load_L[longest]:
      break
    lane_J[mine[i]], lane_J[others[k]] = lane_J[others[k]], longest
  return lane_J


def _too_small(num_steps, shape):
  return ValueError(
      f'these {len(num_steps)} jobs need a larger table than {shape}; '
      'schedule.shape gives one')


def _jobs(work, order, slot_J, shape, weighting):
  """The jobs at their devices' slots, padding between them."""
  def column(values, dtype=np.int32):
    slots = np.zeros(shape.num_devices * shape.jobs_per_device, dtype)
    slots[slot_J] = values[order]
    return slots

  run, num_examples = column(work.run), column(work.num_examples)
  num_steps = column(work.num_steps)
  is_received = column(work.is_received, bool)
  weight = (num_examples if weighting == 'examples' else 1) * is_received
  # A run of which nothing was received has no weights, and no mean.
  total = np.maximum(np.bincount(run, weight), 1)[run]
  return Jobs(run, column(work.client), num_examples, num_steps, is_received,
              (weight / total).astype(np.float32))


def own_examples(clients: Sequence[np.ndarray], most: int) -> OwnExamples:
  """Cuts the clients' indices into batches; `most` is the largest client's."""
  size = min(_OWN_BATCH, most)
  index_JN = np.full((len(clients), -(-most // size) * size), -1, np.int32)
  for row, indices in zip(index_JN, clients):
    row[:len(indices)] = indices
  return OwnExamples(
      index_JN.reshape(len(clients), -1, size),
      np.array([-(-len(indices) // size) for indices in clients], np.int32))
