"""Properties of the plan for arbitrary clients."""

import itertools

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.data import partition
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
  lanes_of = np.split(np.arange(num_lanes), num_devices)
  for lanes_D, num_rows in zip(lanes_of, table.num_rows):
    assert (table.job_TL[num_rows:, lanes_D] == -1).all()
    assert num_rows == (table.job_TL[:, lanes_D] >= 0).sum(0).max()
  running = [table.job_TL[:num_rows, lanes_D] >= 0
             for lanes_D, num_rows in zip(lanes_of, table.num_rows)]
  assert schedule.utilization(table) == pytest.approx(
      np.concatenate([part.ravel() for part in running]).mean())
  slots = np.flatnonzero(table.jobs.num_steps)
  assert sorted(table.jobs.client[slots]) == list(range(len(sizes)))
  first = np.cumsum(work.num_steps) - work.num_steps
  for slot in slots:
    client, steps = table.jobs.client[slot], table.jobs.num_steps[slot]
    rows, lanes = np.nonzero(table.job_TL == slot)
    assert len(set(lanes)) == 1
    # The job is on the device whose slots contain it.
    assert slot // shape.jobs_per_device == lanes[0] // (
        num_lanes // num_devices)
    np.testing.assert_array_equal(np.diff(rows), 1)
    np.testing.assert_array_equal(
        table.step_TL[rows, lanes], np.arange(steps))
    np.testing.assert_array_equal(
        table.examples_TLB[rows, lanes],
        work.batches[first[client]:first[client] + steps])
  assert table.job_TL.max() == slots.max()
  for d, lanes_D in enumerate(lanes_of):
    check_segments(table, d, lanes_D)
  if num_devices == 1:  # no lane is full, so packing is longest first: no job
    # starts later than any lane is free.
    ends = (table.job_TL >= 0).sum(0)
    assert ends.max() - ends.min() <= work.num_steps.max()
  np.testing.assert_allclose(
      table.jobs.weight[slots],
      np.array(sizes)[table.jobs.client[slots]] / sum(sizes), rtol=1e-6)


def check_segments(table, device, lanes):
  """Checks that jobs change exactly at the bounds of segments."""
  bounds = table.bounds[device]
  used = bounds[:table.num_segments[device] + 1]
  assert used[0] == 0 and used[-1] == table.num_rows[device]
  assert (np.diff(used) > 0).all() and (bounds[len(used):] == used[-1]).all()
  jobs = [table.job_TL[begin:end, lanes]
          for begin, end in itertools.pairwise(used)]
  assert all((rows == rows[0]).all() for rows in jobs)
  assert all((a[0] != b[0]).any() for a, b in itertools.pairwise(jobs))


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


@settings(max_examples=60, deadline=None)
@given(sizes_of_clients, st.integers(1, 3), st.integers(1, 64))
def test_batches(sizes, epochs, batch):
  work = make_work(sizes, epochs, batch)
  assert work.batches.shape == (work.num_steps.sum(), batch)
  row, start = 0, 0
  for n, steps in zip(sizes, work.num_steps):
    assert steps == epochs * schedule.steps_per_epoch(n, batch)
    for epoch in work.batches[row:row + steps].reshape(epochs, -1):
      used = epoch[epoch >= 0]
      # An epoch has each example once, except those of the last short batch.
      assert len(set(used)) == len(used)
      assert set(used) <= set(range(start, start + n))
      assert len(used) == (n if n < batch else n // batch * batch)
    row, start = row + steps, start + n


def test_shuffles_do_not_depend_on_the_cohort_and_differ_each_epoch():
  clients = [np.arange(64), np.arange(64, 100), np.arange(100, 500)]
  batches = lambda which: schedule.local_batches(
      [clients[c] for c in which], 2, 32, 500, np.random.default_rng(0))[0]
  together = batches((2, 0, 1))
  np.testing.assert_array_equal(together[24:28], batches((0,)))
  np.testing.assert_array_equal(together[:24], batches((2,)))
  assert (together[24] != together[26]).any()
  # All orders are equally likely: the mean position of an example is central.
  places = [np.argmax(schedule.local_batches(
      [np.arange(10)], 1, 10, 10, np.random.default_rng(seed))[0] == 0)
            for seed in range(2000)]
  assert abs(np.mean(places) - 4.5) < .25


def test_without_shuffling_epochs_keep_the_order_of_examples():
  clients = [np.array([5, 3, 9, 1, 7]), np.array([8, 2])]
  batches, num_steps = schedule.local_batches(clients, 2, 2, 10, None)
  assert num_steps.tolist() == [4, 2]
  assert batches.tolist() == [  # the short batch [7] is dropped
      [5, 3], [9, 1], [5, 3], [9, 1], [8, 2], [8, 2]]
  batches, num_steps = schedule.local_batches(
      clients, 2, 2, 10, None, last_batch='keep')
  assert num_steps.tolist() == [6, 2]
  assert batches.tolist() == [
      [5, 3], [9, 1], [7, -1], [5, 3], [9, 1], [7, -1], [8, 2], [8, 2]]


@settings(max_examples=60, deadline=None)
@given(sizes_of_clients, st.integers(1, 3), st.integers(1, 64))
def test_short_batches_are_kept(sizes, epochs, batch):
  """As a plain loop over lists cuts them, the same examples first."""
  clients = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
  found, num_steps = schedule.local_batches(
      clients, epochs, batch, sum(sizes), np.random.default_rng(0),
      last_batch='keep')
  random = np.random.default_rng(0)
  number_EN = [random.random(sum(sizes)) for _ in range(epochs)]
  expected = []
  for indices in clients:
    for number_N in number_EN:
      order = sorted(indices.tolist(), key=lambda i: number_N[i])
      expected += [order[start:start + batch]
                   for start in range(0, len(order), batch)]
  assert [row[row >= 0].tolist() for row in found] == expected
  assert num_steps.tolist() == [epochs * -(-n // batch) for n in sizes]
  assert num_steps.tolist() == [
      epochs * schedule.steps_per_epoch(n, batch, 'keep') for n in sizes]


def test_weights_sum_to_1_per_run():
  work = schedule.Work(
      run=np.array([0, 0, 1, 1]), client=np.array([0, 1, 0, 5]),
      num_examples=np.array([10, 30, 10, 10]), num_steps=np.ones(4, int),
      batches=np.zeros((4, 4), int), is_received=np.ones(4, bool))
  jobs = schedule.plan(work, schedule.Shape(2, 2, 4, 4)).jobs
  weights = {(r, c): w for r, c, w in zip(jobs.run, jobs.client, jobs.weight)}
  assert weights == {(0, 0): .25, (0, 1): .75, (1, 0): .5, (1, 5): .5}


def test_weights_by_batches():
  """Lost messages have no weight."""
  work = make_work([10, 3, 8, 20], epochs=3, batch=4, lost=[2])
  work = work._replace(share=schedule.share(
      'batches', work.num_examples, work.num_steps))
  table = schedule.plan(work, schedule.shape(work.num_steps, 4, 2, 4))
  weights = dict(zip(table.jobs.client.tolist(), table.jobs.weight.tolist()))
  assert weights == pytest.approx({0: 2 / 8, 1: 1 / 8, 2: 0, 3: 5 / 8})


@pytest.mark.parametrize('beta', [.1, .5])
@pytest.mark.parametrize('clients_per_lane', [4, 12])
@pytest.mark.parametrize('num_devices', [1, 4])
def test_less_than_5_percent_of_steps_are_idle(
    beta, clients_per_lane, num_devices):
  """Dirichlet partitions of CIFAR-10 with 4 or more clients per lane."""
  num_lanes = 8
  labels = np.repeat(np.arange(10), 5000)
  clients = partition.dirichlet(labels, clients_per_lane * num_lanes, beta, 0)
  sizes = np.array([len(indices) for indices in clients])
  steps = schedule.steps_per_epoch(sizes, 64)
  work = schedule.Work(
      np.zeros(len(sizes), int), np.arange(len(sizes)), sizes, steps,
      np.zeros((steps.sum(), 64), int), np.ones(len(sizes), bool))
  table = schedule.plan(work, schedule.shape(
      steps, len(sizes), num_lanes, 64, num_devices))
  assert steps.sum() / (num_lanes * table.num_rows.max()) > .95


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=9),
       st.integers(2, 3))
def test_packing_is_nearly_optimal_for_few_jobs(steps, num_lanes):
  """Compares with all assignments of jobs to lanes."""
  num_rows = _rows(steps, num_lanes)
  assignments = np.array(
      list(itertools.product(range(num_lanes), repeat=len(steps))))
  loads = [(np.array(steps) * (assignments == lane)).sum(1)
           for lane in range(num_lanes)]
  fewest = np.max(loads, axis=0).min()
  assert fewest <= num_rows <= (4 - 1 / num_lanes) / 3 * fewest  # Graham
  if len(steps) <= num_lanes:
    assert num_rows == fewest


def test_jobs_are_swapped():
  """The paper's ten clients: longest-first packing alone needs 407 rows."""
  assert _rows([57, 59, 67, 69, 76, 78, 81, 81, 82, 126], 2) == 389


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


def test_uniform_weights():
  work = make_work([10, 30])
  work = work._replace(share=schedule.share(
      'uniform', work.num_examples, work.num_steps))
  table = schedule.plan(work, schedule.Shape(9, 2, 4, 2))
  np.testing.assert_allclose(table.jobs.weight, [.5, .5])


def test_lost_jobs_have_weight_0_and_padding_is_in_no_lane():
  table = schedule.plan(
      make_work([4, 12, 24], lost=(2,)), schedule.Shape(9, 2, 4, 5))
  weights = dict(zip(table.jobs.client[:3], table.jobs.weight))
  assert weights == {0: .25, 1: .75, 2: 0}
  assert table.jobs.is_received.sum() == 2
  assert (table.jobs.num_steps > 0).tolist() == [True] * 3 + [False] * 2
  assert set(table.job_TL.ravel()) == {-1, 0, 1, 2}


def test_round_without_clients():
  table = schedule.plan(make_work([]), schedule.Shape(3, 2, 4, 2))
  assert (table.num_rows == 0).all() and (table.jobs.weight == 0).all()


def test_plan_of_100_000_clients():
  """Clients have 16 examples each, and run on four devices."""
  num_clients = 100_000
  work = make_work([16] * num_clients, batch=16)
  table = schedule.plan(work, schedule.shape(
      work.num_steps, num_clients, 32, 16, 4))
  assert (table.job_TL >= 0).sum() == num_clients
  assert (table.num_rows == num_clients // 32).all()
