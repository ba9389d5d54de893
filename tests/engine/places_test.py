"""Tests how several runs share the table of a program."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np

from moon_jax.engine import lanes
from moon_jax.engine import schedule

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

  def work(self, cohort, lost, run=0):
    """Returns the jobs of a round."""
    indices = [self.clients[client] for client in cohort]
    batches, num_steps = schedule.local_batches(
        indices, self.num_epochs, BATCH, MAX_CLIENTS * 20,
        np.random.default_rng(len(cohort)))
    return schedule.Work(
        np.full(len(cohort), run, np.int32), np.array(cohort, np.int32),
        np.array([len(i) for i in indices], np.int32), num_steps, batches,
        np.array([client not in lost for client in cohort], bool))


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
  """Draws for each run the jobs of a round; None if it does not train."""
  works = []
  for run_index, run in enumerate(runs):
    cohort = draw(st.lists(
        st.integers(0, len(run.clients) - 1), unique=True,
        max_size=run.cohort_size))
    lost = draw(st.sets(st.sampled_from(cohort))) if cohort else ()
    works.append(run.work(cohort, lost, run_index)
                 if draw(st.integers(0, 4)) else None)
  return works


def layout(runs, available, is_cpu):
  shapes = [run.shape for run in runs]
  num_lanes, num_devices = lanes.choose_for_runs(
      [s.num_lanes for s in shapes], [s.num_devices for s in shapes],
      available, 1, is_cpu)
  return schedule.places(shapes, num_lanes, num_devices)


def plan(works, shape, where):
  """Returns the table of all runs."""
  return schedule.plan(schedule.Work(*[
      None if parts[0] is None else np.concatenate(parts) for parts in zip(
          *[work for work in works if work is not None])]), shape, where)


def jobs_of(table, run):
  """Returns the columns of a run's jobs, without padding and the run."""
  at = (table.jobs.run == run) & (table.jobs.num_steps > 0)
  return {name: column[at] for name, column in table.jobs._asdict().items()
          if name != 'run'}


def steps_of(table, run, lanes):
  """Returns (client, step, examples, lane of the run) of each of its steps."""
  rows, at = schedule.steps_of(table, run)
  lane_of = {lane: index for index, lane in enumerate(lanes)}
  return (table.jobs.client[table.job_TL[rows, at]].tolist(),
          table.step_TL[rows, at].tolist(),
          table.examples_TLB[rows, at].tolist(), [lane_of[x] for x in at])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_each_run_keeps_its_jobs_its_lanes_and_the_order_of_its_steps(data):
  """The shape is that of the runs, and serves each of their rounds."""
  runs, available, is_cpu = data.draw(all_runs())
  shape, where = layout(runs, available, is_cpu)
  assert all(len(np.unique(place.lanes)) == run.shape.num_lanes
             for place, run in zip(where, runs))
  works = data.draw(rounds(runs).filter(
      lambda works: any(work is not None for work in works)))
  table = plan(works, shape, where)
  assert table.job_TL.shape == (shape.num_rows, shape.num_lanes)
  assert len(table.jobs.run) == shape.jobs_per_device * shape.num_devices
  for run, (work, place) in enumerate(zip(works, where)):
    if work is None:
      assert not len(jobs_of(table, run)['client'])
      continue
    alone = schedule.plan(
        work._replace(run=np.zeros_like(work.run)), place.shape)
    np.testing.assert_equal(jobs_of(table, run), jobs_of(alone, 0))
    assert steps_of(table, run, place.lanes) == steps_of(
        alone, 0, range(place.shape.num_lanes))
  check_lanes(table, shape)
  check_segments(table, shape)


def check_lanes(table, shape):
  """Lanes do not idle between steps, and train jobs of their own device."""
  is_used_TL = table.job_TL >= 0
  used_L = is_used_TL.sum(0)
  for lane, used in enumerate(used_L):
    assert is_used_TL[:used, lane].all()
    device = lane * shape.num_devices // shape.num_lanes
    assert (table.job_TL[:used, lane] // shape.jobs_per_device == device).all()
  np.testing.assert_array_equal(
      table.num_rows, used_L.reshape(shape.num_devices, -1).max(1))
  # Padding comes last on each device.
  is_job_DJ = (table.jobs.num_steps > 0).reshape(shape.num_devices, -1)
  assert (np.diff(is_job_DJ.astype(int), axis=1) <= 0).all()


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
def test_a_single_run_has_the_table_without_places(data):
  runs = data.draw(all_runs())[0][:1]
  work, = data.draw(rounds(runs).filter(lambda works: works[0] is not None))
  shape, where = schedule.places(
      [runs[0].shape], runs[0].shape.num_lanes, runs[0].shape.num_devices)
  assert shape == runs[0].shape
  tables = [schedule.plan(work, shape, places) for places in ((), where)]
  np.testing.assert_equal(*[table.jobs._asdict() for table in tables])
  np.testing.assert_equal(*[table._replace(jobs=()) for table in tables])
