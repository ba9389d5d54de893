"""Properties of the plan for arbitrary clients."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.engine import lanes as lanes_lib
from moon_jax.engine import schedule

sizes_of_clients = st.lists(st.integers(1, 200), min_size=1, max_size=25)


def make_work(sizes, epochs=1, batch=4, lost=()):
  sizes = np.array(sizes, int)
  ends = np.cumsum(sizes)
  batches, num_steps = schedule.local_batches(
      [np.arange(end - n, end) for n, end in zip(sizes, ends)], epochs, batch,
      sizes.sum(), np.random.default_rng(0))
  return schedule.Work(
      run=np.zeros(len(sizes), int), client=np.arange(len(sizes)),
      num_examples=sizes, num_steps=num_steps, batches=batches,
      is_received=~np.isin(np.arange(len(sizes)), lost))


@settings(max_examples=60, deadline=None)
@given(sizes_of_clients,
       st.sampled_from([(1, 1), (2, 1), (5, 1), (2, 2), (6, 3), (8, 4)]),
       st.integers(1, 3), st.sampled_from([1, 7, 32]))
def test_every_job_runs_all_its_steps_in_order(sizes, lanes, epochs, batch):
  num_lanes, num_devices = lanes
  work = make_work(sizes, epochs, batch)
  shape = schedule.shape(
      work.num_steps, len(sizes), num_lanes, batch, num_devices)
  table = schedule.plan(work, shape)

  assert (table.num_rows <= shape.num_rows).all()
  check_lanes(table, shape)
  check_segments(table, shape)
  running = [lanes_TL[:num_rows] >= 0 for lanes_TL, num_rows in zip(
      np.split(table.job_TL, num_devices, 1), table.num_rows)]
  assert schedule.utilization(table) == pytest.approx(
      np.concatenate([part.ravel() for part in running]).mean())
  slots = np.flatnonzero(table.jobs.num_steps)
  assert sorted(table.jobs.client[slots]) == list(range(len(sizes)))
  first = np.cumsum(work.num_steps) - work.num_steps
  for slot in slots:
    client, steps = table.jobs.client[slot], table.jobs.num_steps[slot]
    rows, lanes = np.nonzero(table.job_TL == slot)
    assert len(set(lanes)) == 1
    np.testing.assert_array_equal(np.diff(rows), 1)
    np.testing.assert_array_equal(
        table.step_TL[rows, lanes], np.arange(steps))
    np.testing.assert_array_equal(
        table.examples_TLB[rows, lanes],
        work.batches[first[client]:first[client] + steps])
  assert table.job_TL.max() == slots.max()
  if num_devices == 1:  # no lane is full, so packing is longest first: no job
    # starts later than any lane is free.
    ends = (table.job_TL >= 0).sum(0)
    assert ends.max() - ends.min() <= work.num_steps.max()


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


@settings(max_examples=100, deadline=None)
@given(sizes_of_clients, st.integers(1, 25), st.integers(1, 3),
       st.integers(1, 5), st.data())
def test_shape_is_large_enough_for_any_cohort(
    sizes, cohort_size, lanes_per_device, num_devices, data):
  cohort_size = min(cohort_size, len(sizes))
  num_lanes = lanes_per_device * num_devices
  shape = schedule.shape(
      schedule.steps_per_epoch(np.array(sizes), 8), cohort_size, num_lanes, 8,
      num_devices)
  cohort = data.draw(st.permutations(sizes))[:cohort_size]
  table = schedule.plan(make_work(cohort, 1, 8), shape)
  assert table.job_TL.shape == (shape.num_rows, num_lanes)
  assert table.jobs.run.shape == (shape.jobs_per_device * num_devices,)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 60) | st.sampled_from([1, 2, 30, 400]),
                min_size=1, max_size=40),
       st.integers(1, 3), st.integers(2, 4))
def test_full_devices_need_no_more_rows(steps, lanes_per_device, num_devices):
  """Graham's bound, even if a device takes only its equal share of jobs."""
  steps = np.array(steps)
  num_lanes = lanes_per_device * num_devices
  one_device = schedule.shape(steps, len(steps), num_lanes, 1)
  shape = schedule.shape(steps, len(steps), num_lanes, 1, num_devices)
  assert shape.num_rows == one_device.num_rows
  fewest = -(-len(steps) // num_devices)
  rows = schedule.rows(steps, shape._replace(jobs_per_device=fewest))
  bound = steps.sum() / num_lanes + (1 - 1 / num_lanes) * steps.max()
  assert rows.max() <= max(np.ceil(bound), steps.max())


@settings(max_examples=100, deadline=None)
@given(sizes_of_clients, st.integers(1, 3), st.integers(1, 64),
       st.sampled_from(['drop', 'keep']), st.booleans(), st.integers(0, 9),
       st.sampled_from([None, (1., .5, .01)]))
def test_batches_equal_those_of_a_plain_loop(
    sizes, epochs, batch, last_batch, shuffle, num_steps, fractions):
  clients = np.split(np.arange(sum(sizes))[::-1], np.cumsum(sizes)[:-1])
  found, found_steps = schedule.local_batches(
      clients, epochs, batch, sum(sizes),
      np.random.default_rng(0) if shuffle else None, last_batch,
      num_steps, fractions and np.resize(fractions, len(sizes)))
  random = np.random.default_rng(0)
  epochs = num_steps or epochs  # each has a step or more
  number_EN = [random.random(sum(sizes)) for _ in range(epochs)]
  expected, steps = [], []
  for client, indices in enumerate(clients):
    before = len(expected)
    for number_N in number_EN:
      order = indices.tolist()
      if shuffle:
        order.sort(key=lambda i: number_N[i])
      cut = [order[start:start + batch]
             for start in range(0, len(order), batch)]
      if last_batch == 'drop' and len(cut) > 1 and len(cut[-1]) < batch:
        cut.pop()
      expected += cut
    if num_steps:
      del expected[before + num_steps:]
    if fractions:
      fraction = fractions[client % 3]
      del expected[before + max(1, round(
          fraction * (len(expected) - before))):]
    steps.append(len(expected) - before)
  assert [row[row >= 0].tolist() for row in found] == expected
  assert found_steps.tolist() == steps
  assert fractions or steps == [
      num_steps or epochs * schedule.steps_per_epoch(n, batch, last_batch)
      for n in sizes]


@pytest.mark.parametrize('places', [
    [], [0], [99_999], [5, 6, 7, 3], [40_000, 2, 2, 99_999, 0, 1],
    list(range(500, 700))])
@pytest.mark.parametrize('count, kind', [
    (100_000, np.random.PCG64), (10**6, np.random.PCG64),
    (100_000, np.random.MT19937)])
def test_numbers_at_places_equal_those_of_the_whole_stream(places, count, kind):
  places = np.array(places, np.int64)
  ours, theirs = (np.random.Generator(kind([3, 7])) for _ in range(2))
  for _ in range(2):  # the state afterwards is the same, too
    np.testing.assert_array_equal(
        schedule.numbers_at(ours, count, places), theirs.random(count)[places])


def test_few_places_of_a_long_stream_are_not_drawn_one_by_one():
  """10^15 numbers would take months."""
  number = schedule.numbers_at(
      np.random.default_rng(0), 10**15, np.array([10**14]))
  assert 0 <= number[0] < 1


@pytest.mark.parametrize('weighting, weights', [
    ('examples', (10 / 33, 3 / 33, 0, 20 / 33)),
    ('batches', (2 / 8, 1 / 8, 0, 5 / 8)),
    ('uniform', (1 / 3, 1 / 3, 0, 1 / 3))])
def test_weights_sum_to_1_per_run(weighting, weights):
  """Lost messages, here of client 2, have no weight."""
  one = make_work([10, 3, 8, 20], epochs=3, batch=4, lost=[2])
  both = schedule.Work(*(
      None if x is None else np.concatenate([x, x]) for x in one))
  both.run[4:] = 1
  both = both._replace(share=schedule.share(
      weighting, both.num_examples, both.num_steps))
  jobs = schedule.plan(both, schedule.shape(both.num_steps, 8, 2, 4)).jobs
  found = {(r, c): w for r, c, w, is_job in zip(
      jobs.run.tolist(), jobs.client.tolist(), jobs.weight,
      jobs.num_steps > 0) if is_job}
  assert found == pytest.approx({
      (r, c): weights[c] for r in range(2) for c in range(4)})


def test_jobs_are_swapped():
  """The paper's ten clients: longest-first packing alone needs 407 rows."""
  assert _rows([57, 59, 67, 69, 76, 78, 81, 81, 82, 126], 2) == 389


@pytest.mark.parametrize('share', [[.1, .3], [.5, .5], [1e-9, 3e-9], [7, 1.]])
def test_weights_sum_to_1_whatever_their_shares_sum_to(share):
  work = make_work([8, 8])._replace(share=np.array(share))
  shape = schedule.shape(work.num_steps, 2, 1, 4)
  np.testing.assert_allclose(
      schedule.plan(work, shape).jobs.weight[:2], np.array(share) / sum(share))


def test_a_device_takes_1_25_times_its_share_of_small_jobs():
  """One device takes seven of the eight small jobs."""
  steps = np.array([8] + [1] * 8)
  shape = schedule.shape(steps, 9, 2, 1, num_devices=2)
  assert shape.jobs_per_device == 7
  assert schedule.rows(steps, shape).tolist() == [9, 7]


def _rows(steps, num_lanes):
  """Returns the number of rows of a table of jobs with these steps."""
  steps = np.array(steps)
  work = schedule.Work(
      np.zeros(len(steps), int), np.arange(len(steps)), steps, steps,
      np.zeros((steps.sum(), 1), int), np.ones(len(steps), bool))
  return schedule.plan(work, schedule.shape(
      steps, len(steps), num_lanes, 1)).num_rows.max()


def test_too_small_table_raises():
  with pytest.raises(ValueError, match='large enough for its 4 jobs, got'):
    schedule.plan(make_work([4] * 4), schedule.Shape(3, 1, 4, 4))


def test_round_without_clients():
  table = schedule.plan(make_work([]), schedule.Shape(3, 2, 4, 2))
  assert (table.num_rows == 0).all() and (table.jobs.weight == 0).all()


# Several runs in one program.

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
  num_lanes, num_devices = lanes_lib.choose_for_runs(
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
