"""Tests how the tables of several runs become one."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np

from moon_jax.engine import lanes
from moon_jax.engine import schedule
from moon_jax.engine import side_by_side
from moon_jax.engine.round import RoundMetrics

BATCH = 2
MAX_CLIENTS = 9


class Run:
  """The clients of a run: client i has its own examples."""

  def __init__(self, sizes, num_epochs, cohort_size, num_devices, width):
    self.num_epochs = num_epochs
    ends = np.cumsum(sizes)
    self.clients = [np.arange(end - n, end) for n, end in zip(sizes, ends)]
    steps = num_epochs * schedule.steps_per_epoch(np.array(sizes), BATCH)
    self.cohort_size = min(cohort_size, len(sizes))
    self.shape = schedule.shape(
        steps, self.cohort_size, num_devices * width, BATCH, num_devices)

  def table(self, cohort, lost):
    """Returns the table of a round, with all examples of its jobs."""
    indices = [self.clients[client] for client in cohort]
    batches, num_steps = schedule.local_batches(
        indices, self.num_epochs, BATCH, MAX_CLIENTS * 20,
        np.random.default_rng(len(cohort)))
    table = schedule.plan(schedule.Work(
        np.zeros(len(cohort), np.int32), np.array(cohort, np.int32),
        np.array([len(i) for i in indices], np.int32), num_steps, batches,
        np.array([client not in lost for client in cohort], bool)), self.shape)
    own = [self.clients[client] if steps else [] for client, steps in zip(
        table.jobs.client, table.jobs.num_steps)]
    return table._replace(own=schedule.own_examples(own, self.max_examples))

  @property
  def max_examples(self):
    return max(map(len, self.clients))


@st.composite
def all_runs(draw):
  """Draws runs, the devices that they share, and whether they are CPUs."""
  available = draw(st.sampled_from([1, 2, 3, 4]))
  runs = [Run(draw(st.lists(st.integers(1, 20), min_size=1,
                            max_size=MAX_CLIENTS)),
              draw(st.integers(1, 3)), draw(st.integers(1, MAX_CLIENTS)),
              draw(st.integers(1, available)), draw(st.integers(1, 3)))
          for _ in range(draw(st.integers(1, 5)))]
  return runs, available, draw(st.booleans())


@st.composite
def rounds(draw, runs):
  """Draws for each run its table of a round; None if it does not train."""
  tables = []
  for run in runs:
    cohort = draw(st.lists(
        st.integers(0, len(run.clients) - 1), unique=True,
        max_size=run.cohort_size))
    lost = draw(st.sets(st.sampled_from(cohort))) if cohort else ()
    tables.append(run.table(cohort, lost) if draw(st.integers(0, 4)) else None)
  return tables


def layout(runs, available, is_cpu):
  shapes = [run.shape for run in runs]
  num_lanes, num_devices = lanes.choose_for_runs(
      [s.num_lanes for s in shapes], [s.num_devices for s in shapes],
      available, 1, is_cpu)
  return side_by_side.places(shapes, num_lanes, num_devices)


def join(tables, where, shape, runs):
  return side_by_side.join(
      tables, where, shape, max(run.max_examples for run in runs))


def cells(table, lane):
  """Returns the (job, step, examples) of a lane, in order, with its rows."""
  rows = np.flatnonzero(table.job_TL[:, lane] >= 0)
  return rows, [(int(table.job_TL[t, lane]), int(table.step_TL[t, lane]),
                 table.examples_TLB[t, lane].tolist()) for t in rows]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_table_of_all_runs_has_the_table_of_each(data):
  """The shape is that of the runs, and serves each of their rounds."""
  runs, available, is_cpu = data.draw(all_runs())
  shape, where = layout(runs, available, is_cpu)
  assert all(len(np.unique(place.lanes)) == run.shape.num_lanes
             for place, run in zip(where, runs))
  for _ in range(2):
    tables = data.draw(rounds(runs))
    joined = join(tables, where, shape, runs)
    check_jobs(tables, joined, shape)
    check_lanes(tables, where, joined, shape)
    check_segments(joined.table, shape)


def check_jobs(tables, joined, shape):
  """Each job of each run occurs once, unchanged, and no other does."""
  jobs, own = joined.table.jobs, joined.table.own
  taken = []
  for run, (table, slot_J) in enumerate(zip(tables, joined.slots)):
    if table is None:
      assert not len(slot_J)
      continue
    is_job_J = table.jobs.num_steps > 0
    np.testing.assert_array_equal(slot_J >= 0, is_job_J)
    slot_J = slot_J[is_job_J]
    taken += slot_J.tolist()
    assert (jobs.run[slot_J] == run).all()
    for name in set(jobs._fields) - {'run'}:
      np.testing.assert_array_equal(
          getattr(jobs, name)[slot_J], getattr(table.jobs, name)[is_job_J])
    assert [i[i >= 0].tolist() for i in own.index_JSB[slot_J]] == [
        i[i >= 0].tolist() for i in table.own.index_JSB[is_job_J]]
  assert len(jobs.run) == shape.jobs_per_device * shape.num_devices
  assert sorted(taken) == np.flatnonzero(jobs.num_steps).tolist()
  # Padding comes last on each device.
  is_job_DJ = (jobs.num_steps > 0).reshape(shape.num_devices, -1)
  assert (np.diff(is_job_DJ.astype(int), axis=1) <= 0).all()


def check_lanes(tables, where, joined, shape):
  """Each run keeps its lanes and the order of its steps."""
  table, used_L = joined.table, np.zeros(shape.num_lanes, int)
  assert table.job_TL.shape == (shape.num_rows, shape.num_lanes)
  for alone, place, slot_J, rows_L in zip(
      tables, where, joined.slots, joined.rows):
    if alone is None:
      continue
    for lane, (to, (first, end)) in enumerate(zip(place.lanes, rows_L)):
      _, steps = cells(alone, lane)
      rows, found = cells(table, to)
      is_own = (first <= rows) & (rows < end)
      assert [cell for cell, is_in in zip(found, is_own) if is_in] == [
          (slot_J[job], step, examples) for job, step, examples in steps]
      used_L[to] += len(steps)
      device = to * shape.num_devices // shape.num_lanes
      assert all(slot_J[job] // shape.jobs_per_device == device
                 for job, _, _ in steps)
  # No lane has further steps, or idles between two.
  for lane, used in enumerate(used_L):
    rows, _ = cells(table, lane)
    assert rows.tolist() == list(range(used))
  np.testing.assert_array_equal(
      table.num_rows, used_L.reshape(shape.num_devices, -1).max(1))


def check_segments(table, shape):
  """Each lane has one job, or none, in the rows of a segment."""
  for d, job_TL in enumerate(np.split(table.job_TL, shape.num_devices, 1)):
    count, bounds = table.num_segments[d], table.bounds[d]
    assert bounds[0] == 0 and (np.diff(bounds[:count + 1]) > 0).all()
    assert (bounds[count:] == table.num_rows[d]).all()
    for first, end in zip(bounds[:count], bounds[1:count + 1]):
      assert (job_TL[first:end] == job_TL[first]).all()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_table_of_one_run_is_its_own(data):
  """Compared with `schedule.plan`, which knows nothing of other runs."""
  runs = data.draw(all_runs())[0][:1]
  tables = data.draw(rounds(runs).filter(lambda tables: tables[0] is not None))
  shape, where = side_by_side.places(
      [runs[0].shape], runs[0].shape.num_lanes, runs[0].shape.num_devices)
  assert shape == runs[0].shape
  joined = join(tables, where, shape, runs).table
  np.testing.assert_equal(joined.jobs._asdict(), tables[0].jobs._asdict())
  np.testing.assert_equal(joined._replace(jobs=()), tables[0]._replace(jobs=()))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_metrics_of_a_run_are_those_of_its_own_table(data):
  runs, available, is_cpu = data.draw(all_runs())
  shape, where = layout(runs, available, is_cpu)
  tables = data.draw(rounds(runs))
  joined = join(tables, where, shape, runs)
  rng = np.random.default_rng(0)
  loss_TL = rng.normal(size=joined.table.job_TL.shape)
  drift_J, finite_J = rng.normal(size=len(joined.table.jobs.run)), (
      rng.integers(2, size=len(joined.table.jobs.run)).astype(bool))
  # What a step or a job of padding has is not the run's.
  metrics = RoundMetrics(
      loss_TL, {'extra': -loss_TL}, drift_J, finite_J,
      rng.integers(2, size=len(runs)).astype(bool), rng.normal(size=len(runs)),
      2 * drift_J, models_J=())
  # The loss of each step, by the job and its step.
  table = joined.table
  at = {(int(table.job_TL[t, lane]), int(table.step_TL[t, lane])):
        loss_TL[t, lane] for t, lane in zip(*np.nonzero(table.job_TL >= 0))}
  for run, alone in enumerate(tables):
    if alone is None:
      continue
    found = side_by_side.metrics_of(run, where[run], joined, metrics)
    expected_TL = np.zeros(alone.job_TL.shape)
    slot_J = joined.slots[run]
    for t, lane in zip(*np.nonzero(alone.job_TL >= 0)):
      expected_TL[t, lane] = at[slot_J[alone.job_TL[t, lane]],
                                alone.step_TL[t, lane]]
    np.testing.assert_array_equal(found.loss_TL, expected_TL)
    np.testing.assert_array_equal(found.extra_TL['extra'], -expected_TL)
    is_job_J = alone.jobs.num_steps > 0
    for own_J, all_J, padding in ((found.drift_J, drift_J, 0),
                                  (found.finite_J, finite_J, True),
                                  (found.cosine_J, 2 * drift_J, 0)):
      np.testing.assert_array_equal(own_J[is_job_J], all_J[slot_J[is_job_J]])
      assert (own_J[~is_job_J] == padding).all()
    assert found.finite_R == [metrics.finite_R[run]]
    assert found.cosine_R == [metrics.cosine_R[run]]
