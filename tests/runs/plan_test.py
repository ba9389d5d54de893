"""Tests plans of sweeps: their programs and the cost."""

import dataclasses
import itertools
import re
import types

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.distributed import host
from moon_jax.runs import grid, plan
from moon_jax.runs import run as run_lib
from moon_jax.simulation import agreement, build, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.simulation import Simulation
from support import inline, small_runs
from support.small_runs import raising

BASE = Config(
    dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
    participation=.5, local_epochs=3, batch_size=8, num_rounds=7, eval_every=3)
DATASET = sources.load_dataset('breast_cancer', '')
RATES = plan.Rates(
    seconds_per_row=2., seconds_per_job=.5, evaluation_seconds=6.,
    temporary_bytes=10**9, compile_seconds=100.)
MEASURED = RATES._replace(seconds_per_job=.5, resident_bytes=10**9)


def spec_of(config, like=None):
  return round_spec.alone(build.federation(config, DATASET), like)


def changed(**changes):
  return dataclasses.replace(BASE, **changes)


def units_of(configs, path):
  return run_lib.Runs(configs, ('seed',), str(path))


@pytest.mark.parametrize('changes', [
    {'algorithm': 'fedprox(mu=1)'}, {'batch_size': 16},
    {'local_epochs': 1}, {'algorithm': 'moon(num_negatives=2)'}])
def test_runs_of_other_programs(changes, tmp_path):
  configs = [BASE, changed(**changes), changed(seed=1)]
  assert units_of(configs, tmp_path).planned(0) == [[0, 2], [1]]


def test_facts_about_the_splits_decide_which_runs_share_a_program(tmp_path):
  """Clients of the first run have fewer examples than its batch."""
  configs = [changed(batch_size=500, partition='dirichlet', seed=seed)
             for seed in range(2)]
  assert units_of(configs, tmp_path).planned(0) == [[0], [1]]


def test_runs_with_equal_functions_are_traced_once(tmp_path, monkeypatch):
  calls, trace = [], round_spec.trace
  monkeypatch.setattr(round_spec, 'trace', lambda *args: (
      calls.append(args) or trace(*args)))
  configs = [changed(algorithm='fedavg_ft', client_eval='all', seed=seed,
                     client_eval_every=1, client_test_fraction=.2)
             for seed in range(3)]
  assert len([*units_of(configs, tmp_path).specs(range(3))]) == 3
  assert len(calls) == 1


@pytest.mark.long
def test_a_plan_holds_few_federations(tmp_path, monkeypatch):
  """Those of 1,000 runs of CIFAR-10 would take 0.4 GB."""
  held = small_runs.held_federations(monkeypatch)
  configs = [changed(seed=seed) for seed in range(5)]
  assert units_of(configs, tmp_path).planned(0) == [[*range(5)]]
  assert max(held) == 2  # the largest run, and the last one


def test_splits(monkeypatch, tmp_path):
  units = units_of([changed(seed=seed) for seed in range(6)], tmp_path)
  assert units.planned(max_runs=4) == [[0, 1, 2], [3, 4, 5]]
  assert units.planned(0, num_parts=3) == [[0, 1], [2, 3], [4, 5]]
  one, = memory_lib.needs(spec_of(BASE))
  six, = memory_lib.needs(*[spec_of(BASE)] * 6)
  assert six.size > 3 * one.size
  monkeypatch.setattr(host, 'machine_bytes', lambda: 3 * one.size)
  assert len(units.planned(max_runs=5)) > 1


@pytest.mark.parametrize('num_devices, lanes', [(1, 1), (2, 2), (4, 2)])
def test_amounts_are_those_of_the_tables(num_devices, lanes):
  configs = [changed(seed=0, num_rounds=4, lanes=lanes),
             changed(seed=1, num_rounds=4, lanes=lanes),
             changed(seed=2, num_rounds=4, lanes=lanes, local_epochs=5)]
  specs = [round_spec.alone(build.federation(config, DATASET))
           for config in configs]
  joined, places = round_spec.together(specs, num_devices)
  shape = joined.shape
  planner = round_spec.Planner(specs, shape, places)
  rows = jobs = 0
  for index in range(4):
    found = planner.plan(*[index] * 3)
    rows += found.num_rows.max()
    per_device = (found.jobs.num_steps > 0).reshape(shape.num_devices, -1)
    jobs += per_device.sum(1).max()
  assert plan.amounts(specs, places, joined.shape) == (rows, jobs)


def test_amounts_end_with_each_run():
  specs = [spec_of(changed(num_rounds=rounds, lanes=1)) for rounds in (2, 7)]
  joined, places = round_spec.together(specs, 1)
  _, jobs = plan.amounts(specs, places, joined.shape)
  assert jobs == (2 + 7) * 8


def test_the_cost_is_that_of_rows_jobs_and_evaluations():
  configs = [changed(seed=seed, lanes=1) for seed in range(3)]
  specs = [*map(spec_of, configs)]
  alone = plan.estimate(specs[:1], configs[:1], RATES)
  # 16 clients of 28 examples take 9 steps each; 8 of them train in a round.
  assert (alone.rounds, alone.rows) == (7, 7 * 8 * 9)
  assert alone.seconds == {
      'training': 2 * alone.rows + .5 * 56, 'evaluation': 3 * 6.,
      'compilation': 100.}
  three = plan.estimate(specs, configs, RATES)
  assert three.seconds['evaluation'] == 3 * alone.seconds['evaluation']
  assert alone.rows <= three.rows <= 3 * alone.rows
  on_lanes = three._replace(
      groups=4, seconds={'training': 60., 'compilation': 5.})
  assert '  time: 1:05 to 4:05 (training 1:00, compilation 5 s)' in plan.show(
      on_lanes)


def test_local_steps_are_measured_by_the_program_of_one_epoch(monkeypatch):
  config = changed(
      num_clients=2, participation=1., local_steps=5, batch_size=1, lanes=1)
  spec = spec_of(config)

  def simulation(federation):
    raise StopIteration(federation)

  monkeypatch.setattr(plan, 'Simulation', simulation)
  with pytest.raises(StopIteration) as stopped:
    plan.measure(spec)
  measured = round_spec.alone(stopped.value.value)
  assert agreement.shared_values(measured) == agreement.shared_values(spec)
  assert measured.steps_C.tolist() == [12 * 4, 12 * 4]  # of 24 rows in all, x 4


def test_evaluations_are_those_of_all_examples_of_clients(monkeypatch):
  """Clients of the measured run have fewer."""
  record = types.SimpleNamespace(seconds=1.)
  rows = types.SimpleNamespace(num_rows=np.ones(1, int))

  def simulation(federation):
    return types.SimpleNamespace(
        federation=federation, rounds_done=0, num_devices=1,
        planner=types.SimpleNamespace(
            clients=[federation.clients], plan=lambda index: rows),
        compile=lambda: 1., run_round=lambda: record, evaluate=dict,
        temporary_bytes=lambda: 0)

  monkeypatch.setattr(plan, 'Simulation', simulation)
  monkeypatch.setattr(plan, 'time', types.SimpleNamespace(
      perf_counter=itertools.count().__next__))  # an evaluation takes a second
  of = lambda **changes: plan.measure(spec_of(changed(
      batch_size=2, lanes=1, **changes))).evaluation_seconds
  assert of() == 1
  # 113 test and 456 training examples; the first 8 of each of 16 clients.
  assert of(eval_on='train') == pytest.approx((113 + 456) / (113 + 16 * 8))


def test_a_dry_run_prints_the_plan_and_writes_nothing(monkeypatch, tmp_path):
  measured = []

  def measure(spec):
    measured.append(spec.federation.seed)
    return RATES

  monkeypatch.setattr(plan, 'measure', measure)
  sweep = grid.Sweep.grid(
      BASE, **{'algorithm.mu': [1, 5]}, seed=range(3))
  text = plan.dry_run(run_lib.Runs(
      sweep.configs, sweep.axes, str(tmp_path)), is_measured=True)
  assert not [*tmp_path.iterdir()]
  assert measured == [0]
  for words in ('program 1 of 1: 6 runs, 0 of them ended',
                'algorithm.mu=1,5 seed=0,1,2\n',
                'memory of the machine: ', 'client state of a round, before',
                '1.000 GB on each device', 'compilation 1:40)',
                'total: 6 runs to train in 1 program;'):
    assert words in text, words
  monkeypatch.setattr(run_lib.Runs, 'result', lambda self, index: (
      {'rounds': 7} if index < 4 else None))
  text = plan.dry_run(run_lib.Runs(
      sweep.configs, sweep.axes, str(tmp_path)), max_runs=1, is_measured=True)
  assert measured == [0, 1, 2]  # unfinished runs
  assert text.startswith(
      '4 of 6 runs are finished\nprogram 1 of 2: 1 run, 0 of them ended\n')
  assert 'total: 2 runs to train in 2 programs;' in text
  text = plan.dry_run(run_lib.Runs(
      sweep.configs, sweep.axes, str(tmp_path)), part=(0, 2),
                      is_measured=True)
  assert 'program 1 of 2, part 0/2: 3 runs, 3 of them ended\n' in text
  assert 'program 2 of 2, part 1/2: 3 runs, 1 of them ended\n' in text
  monkeypatch.setattr(
      run_lib.Runs, 'result', lambda self, index: {'rounds': 7})
  assert plan.dry_run(run_lib.Runs(
      sweep.configs, sweep.axes, str(tmp_path)), is_measured=True).endswith(
      'total: all runs are finished')


def test_long_axes_are_shortened():
  configs = [changed(seed=seed, algorithm=f'moon(mu={mu})')
             for seed in range(9) for mu in (.5, 1)]
  axes = 'seed', 'algorithm.mu'
  assert plan.runs_text(configs, axes) == (
      'seed=0,1,2,...,8 algorithm.mu=0.5,1')
  assert plan.runs_text([changed(algorithm='fedavg')], axes) == (
      'seed=0')


def test_the_estimates_are_those_of_the_round(monkeypatch):
  """8 of 16 clients, of 9 steps each, train on two lanes."""
  monkeypatch.setattr(plan, 'measure', lambda spec: MEASURED)
  config = Config(
      dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
      participation=.5, local_epochs=3, batch_size=8,
      algorithm='moon(num_negatives=2)', num_rounds=7, eval_every=2, lanes=2)
  text = plan.dry_run(run_lib.Runs([config]), is_measured=True)
  for words in ('2 lanes on 2 devices; 7 rounds, 36 rows per round',
                'utilization of the lanes: 1.000', 'evaluation 24 s'):
    assert words in text, text
  simulation = Simulation(build.federation(config))
  assert f'traffic: {simulation.bytes_per_round() / 1e6:.3g} MB per' in text
  jobs = len(simulation.planner.plan(0).jobs.run)
  client = sum(x.nbytes for x in jax.tree.leaves(
      simulation.state.clients)) // 16
  # The state of all clients, its copy for a checkpoint, and that of jobs.
  process = 10**9 + client * (2 * 16 + 3 * jobs)
  assert f'runs it here: {process / 1e9:,.3f} GB' in text
  monkeypatch.setattr(plan, 'measure', raising(AssertionError('it measures')))
  sizes = plan.dry_run(run_lib.Runs([config]))
  assert 'memory of the machine' in sizes and 'time: ' not in sizes


@pytest.mark.slow
def test_the_command_measures(tmp_path):
  flags = ('--dataset=breast_cancer --model=mlp --num_clients=4 '
           '--partition.beta=50 --local_epochs=9 --batch_size=16 '
           '--num_rounds=5 --dry_run --measure').split()
  done = inline.run('train', *flags, cwd=tmp_path, module='moon_jax')
  assert done.status == 0, done.err
  [rows] = re.findall(r'([\d,]+) rows per round', done.out)
  assert int(rows.replace(',', '')) > 200  # clients were shortened to measure
  assert 'time: ' in done.out and 'memory of the machine' in done.out
