"""Estimates of the planner, by counting and by closed forms."""

import dataclasses
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.engine import schedule
from moon_jax.errors import UserError
from moon_jax.simulation import build, forecast
from moon_jax.simulation.simulation import Simulation

_ROOT = pathlib.Path(__file__).parents[1]

CONFIG = Config(
    dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
    participation=.5, local_epochs=3, batch_size=8, num_negatives=2,
    num_rounds=7, eval_every=2)
RATES = forecast.Rates(
    seconds_per_row=2., seconds_per_job=.5, evaluation_seconds=6.)


def test_time_is_that_of_rows_jobs_and_network():
  """16 clients of 28 examples make 9 steps each, 8 of them a round."""
  alone = forecast.forecast(CONFIG, 4, rates=RATES)
  assert (alone.num_lanes, alone.num_devices) == (2, 2)  # four jobs a lane
  assert alone.rows == 36 and alone.utilisation == 1
  assert alone.seconds['training'] == 36 * 2 + 4 * .5
  assert alone.seconds['network'] == 0
  assert alone.moved_bytes['clients between processes'] == 0
  both = forecast.forecast(
      dataclasses.replace(CONFIG, lanes=8), 8, 4, gbit=1e-3, rates=RATES)
  assert (both.num_lanes, both.num_devices, both.rows) == (8, 8, 9)
  network = (both.moved_bytes['summed over devices']
             + both.moved_bytes['clients between processes'])
  np.testing.assert_allclose(both.seconds['network'], 16e-6 * network)
  # Two devices here share the test set; there eight do.
  assert both.seconds['evaluation'] == 6 / 2 * 2 / 8


def test_bytes_are_those_of_the_arrays():
  found = forecast.forecast(CONFIG, 2, rates=RATES)
  dataset = sources.load('breast_cancer', '')
  simulation = Simulation(build.federation(CONFIG, dataset))
  table = simulation.planner.plan(0)
  nbytes = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))
  client = nbytes(simulation.state.clients) // 16
  per_device = len(table.jobs.run) // 2
  assert found.device_bytes['clients of a round'] == 2 * client * per_device
  assert found.device_bytes['table'] == table.examples_TLB.nbytes // 2
  assert found.device_bytes['data'] == sum(
      x.nbytes for x in (dataset.train_inputs, dataset.train_labels)
  ) + nbytes(simulation._evaluator.test_data) // 2


def test_checkpoints_copy_the_state_of_all_clients():
  found = forecast.forecast(CONFIG, 2, rates=RATES)
  without = forecast.forecast(
      dataclasses.replace(CONFIG, checkpoint_every=0), 2, rates=RATES)
  client = found.device_bytes['clients of a round'] // (
      2 * schedule.jobs_per_device(8, 2))
  assert found.process_bytes - without.process_bytes == 16 * client


def test_rows_are_those_of_tables():
  steps = np.array([5, 9, 2, 7, 7, 1])
  shape = schedule.shape(steps, 6, 4, 8, 2)
  work = schedule.Work(
      np.zeros(6, int), np.arange(6), steps * 8, steps,
      np.zeros((31, 8), int), np.ones(6, bool))
  np.testing.assert_array_equal(
      schedule.rows(steps, shape), schedule.plan(work, shape).num_rows)


def test_lanes_that_processes_cannot_share():
  with pytest.raises(UserError, match='multiple of the 2 .*got --lanes=3'):
    forecast.forecast(dataclasses.replace(CONFIG, lanes=3), 4, 2, rates=RATES)


@pytest.mark.slow
def test_the_command_measures():
  flags = ('--dataset=breast_cancer --model=mlp --num_clients=4 --beta=50 '
           '--local_epochs=9 --batch_size=16 --num_rounds=5').split()
  done = subprocess.run(
      [sys.executable, '-m', 'moon_jax.plan', *flags], text=True, cwd=_ROOT,
      capture_output=True, timeout=200)
  assert done.returncode == 0, done.stderr
  assert 'utilization' in done.stdout
  assert 'memory per process' in done.stdout
  per_round = float(re.findall(r'total +([\d.]+)', done.stdout)[-1])
  assert 0 < per_round < 60
  [rows] = re.findall(r'([\d,]+) steps per lane', done.stdout)
  rows = float(rows.replace(',', ''))
  assert rows > 200  # so that clients were shortened to measure
  wrong = subprocess.run(
      [sys.executable, '-m', 'moon_jax.plan', '--gbit=nan'], text=True,
      cwd=_ROOT, capture_output=True)
  assert wrong.returncode == 2 and '--gbit=nan' in wrong.stderr
