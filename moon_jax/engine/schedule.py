"""Plans a round on the host: the table of local steps that devices run.

A job is one client of one run. The table has one row per step and one column
per lane. `moon_jax.engine.packing` assigns jobs to lanes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.engine import packing

Shape = packing.Shape
Place = packing.Place
places = packing.places
shape = packing.shape
jobs_per_device = packing.jobs_per_device
rows = packing.rows

_OWN_BATCH = 100  # batch size for passes over all examples of a client

# Jumping to a number takes as long as drawing this many.
_DRAWS_PER_JUMP = 200


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


def utilization(table: Table) -> float:
  """Returns the fraction of the steps of all lanes that train a client; 0 for a
  table without rows."""
  lanes_per_device = table.job_TL.shape[1] // len(table.num_rows)
  steps = int(table.num_rows.sum()) * lanes_per_device
  return int(table.jobs.num_steps.sum()) / max(steps, 1)


def local_batches(clients: Sequence[np.ndarray], num_epochs: int,
                  batch_size: int, num_train: int,
                  random: np.random.Generator | None,
                  last_batch: str = 'drop'
                  ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the clients' batches of one round, reshuffled each epoch.

  A client with fewer examples than one batch trains on one padded batch per
  epoch.

  Each epoch draws one random number per training example, and each client
  sorts its examples by their numbers. So the shuffles of a client do not depend
  on the rest of the cohort.

  Args:
    clients: the indices of each client's training examples, one or more.
    num_epochs: local epochs.
    batch_size: B.
    num_train: N, the size of the training set.
    random: the generator of this round; None to keep the clients' order of
      examples, so that each epoch has the same batches.
    last_batch: "drop" or "keep" the last short batch of each epoch; if it is
      kept, it is padded.

  Returns:
    The batches of the first client, then of the second, ..., int32 [S, B], with
    -1 for padding; and the number of steps of each client, int [num_clients].
  """
  sizes = np.array([len(indices) for indices in clients], np.int64)
  steps = steps_per_epoch(sizes, batch_size, last_batch)
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
      order = np.lexsort((numbers_at(random, num_train, examples), by_owner))
    batches[row + epoch * steps[owner], place % batch_size] = (
        examples[order][is_kept])
  return batches, steps * num_epochs


def numbers_at(random: np.random.Generator, count: int,
               places: np.ndarray) -> np.ndarray:
  """Returns `random.random(count)[places]` with the same bits.

  The generator is afterwards in the same state, too. If few places are asked
  for, it jumps over the others: each number takes one step of PCG64, the
  generator of `numpy.random.default_rng`.

  Args:
    random: the generator.
    count: numbers in the stream.
    places: int [n], 0 to count - 1; may repeat.
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
          num_steps: np.ndarray) -> np.ndarray:
  """Returns `Work.share` of jobs.

  Args:
    weighting: weighs jobs by their number of "examples" or of "batches", or
      "uniform".
    num_examples: int [J].
    num_steps: int [J]. All jobs of a run have as many epochs, so steps are as
      good as batches.
  """
  return {'examples': num_examples, 'batches': num_steps,
          'uniform': np.ones_like(num_steps)}[weighting]


def plan(work: Work, shape: Shape, places: Sequence[Place] = ()) -> Table:
  """Returns the table of a round.

  Args:
    work: the jobs of all runs.
    shape: shape of the table, large enough for the jobs; see `packing.shape`.
    places: for each run its lanes; without them all jobs share all lanes.

  Raises:
    ValueError: if the table is too small for the jobs.
  """
  lane_J, row_J = _assign(work, shape, places)
  device_J = lane_J * shape.num_devices // shape.num_lanes
  order = np.lexsort((lane_J, work.run if len(places) else 0 * device_J,
                      device_J))
  sorted_device_J = device_J[order]
  count_D = np.bincount(sorted_device_J, minlength=shape.num_devices)
  first_D = np.cumsum(count_D) - count_D
  sorted_slot_J = (sorted_device_J * shape.jobs_per_device
                   + np.arange(len(order)) - first_D[sorted_device_J])
  jobs = _jobs(work, order, sorted_slot_J, shape)

  slot_J = np.empty(len(order), np.int64)
  slot_J[order] = sorted_slot_J
  steps = work.num_steps
  job_S = np.repeat(np.arange(len(steps)), steps)
  step_S = np.arange(len(job_S)) - np.repeat(np.cumsum(steps) - steps, steps)
  at = row_J[job_S] + step_S, lane_J[job_S]
  size = shape.num_rows, shape.num_lanes
  job_TL = np.full(size, -1, np.int32)
  job_TL[at] = slot_J[job_S]
  step_TL = np.zeros(size, np.int32)
  step_TL[at] = step_S
  examples_TLB = np.full((*size, shape.batch_size), -1, np.int32)
  examples_TLB[at] = work.batches
  num_rows = packing.rows_per_device(steps, lane_J, row_J, shape)
  num_segments, bounds = _segments(row_J + steps, device_J, shape)
  return Table(jobs, num_rows, num_segments, bounds, job_TL, step_TL,
               examples_TLB)


def _assign(work, shape, places):
  if not len(places):
    return packing.assign(work.num_steps, shape)
  lane_J, row_J = np.zeros((2, len(work.run)), np.int64)
  load_L = np.zeros(shape.num_lanes, np.int64)
  for run in np.unique(work.run):
    at, place = np.flatnonzero(work.run == run), places[run]
    lane, row = packing.assign(work.num_steps[at], place.shape)
    lane_J[at] = place.lanes[lane]
    row_J[at] = load_L[lane_J[at]] + row
    np.add.at(load_L, lane_J[at], work.num_steps[at])
  return lane_J, row_J


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


def _jobs(work, order, sorted_slot_J, shape):
  """Returns the jobs in the slots of their devices, with padding."""
  def column(values, dtype=np.int32):
    slots = np.zeros(shape.num_devices * shape.jobs_per_device, dtype)
    slots[sorted_slot_J] = values[order]
    return slots

  run, is_received = column(work.run), column(work.is_received, bool)
  share = work.num_examples if work.share is None else work.share
  weight = column(share, share.dtype) * is_received
  # A run that receives no message has total weight 0.
  total = np.maximum(np.bincount(run, weight), 1)[run]
  return Jobs(run, column(work.client), column(work.num_examples),
              column(work.num_steps), is_received,
              (weight / total).astype(np.float32))


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
  size = min(_OWN_BATCH, max_examples)
  index_JN = np.full(
      (len(clients), -(-max_examples // size) * size), -1, np.int32)
  for row, indices in zip(index_JN, clients):
    row[:len(indices)] = indices
  return OwnExamples(
      index_JN.reshape(len(clients), -1, size),
      np.array([-(-len(indices) // size) for indices in clients], np.int32))
