"""Estimates of the planner, by counting, and its command."""

import re

import jax
import pytest

from moon_jax import plan
from moon_jax.config import Config
from moon_jax.runs import plan as plan_lib
from moon_jax.simulation import build
from moon_jax.simulation.simulation import Simulation

CONFIG = Config(
    dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
    participation=.5, local_epochs=3, batch_size=8,
    algorithm='moon(num_negatives=2)', num_rounds=7, eval_every=2, lanes=2)
RATES = plan_lib.Rates(
    seconds_per_row=2., seconds_per_job=.5, evaluation_seconds=6.,
    resident_bytes=10**9, temporary_bytes=10**6)


def test_the_estimates_are_those_of_the_round(monkeypatch):
  """8 of 16 clients, of 9 steps each, train on two lanes."""
  monkeypatch.setattr(plan_lib, 'measure', lambda spec, config: RATES)
  text = plan.measured(CONFIG)
  for words in ('2 lanes on 2 devices; 7 rounds, 36 rows per round',
                'utilization of the lanes: 1.000', 'evaluation 24 s'):
    assert words in text, text
  simulation = Simulation(build.federation(CONFIG))
  jobs = len(simulation.planner.plan(0).jobs.run)
  client = sum(x.nbytes for x in jax.tree.leaves(
      simulation.state.clients)) // 16
  # The state of all clients, its copy for a checkpoint, and that of jobs.
  process = 10**9 + client * (2 * 16 + 3 * jobs)
  assert f'runs it here: {process / 1e9:,.3f} GB' in text


@pytest.mark.slow
def test_the_command_measures(whole, tmp_path):
  flags = ('--dataset=breast_cancer --model=mlp --num_clients=4 '
           '--partition.beta=50 --local_epochs=9 --batch_size=16 '
           '--num_rounds=5').split()
  done = whole.run('plan', *flags, cwd=tmp_path, module='moon_jax')
  assert done.status == 0, done.err
  [rows] = re.findall(r'([\d,]+) rows per round', done.out)
  assert int(rows.replace(',', '')) > 200  # clients were shortened to measure
  assert 'time: ' in done.out and 'memory of the machine' in done.out
