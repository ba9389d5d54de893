"""Sweeps: their runs, their order, equal runs, and arguments of --grid."""

import dataclasses

import numpy as np
import pytest

import moon_jax as mj
from moon_jax.rundir import identity
from moon_jax.rundir.workdir import Workdir
from moon_jax.simulation import checks
from moon_jax.sweep import grid as grid_lib
from moon_jax.sweep import values
from moon_jax.sweep.grid import Sweep

BASE = mj.Config(dataset='digits', num_rounds=2)


def fields(sweep, *names):
  return [tuple(getattr(config, name) for name in names)
          for config in sweep.configs]


def test_a_grid_has_all_combinations_and_the_last_axis_is_fastest():
  sweep = Sweep.grid(BASE, mu=[.1, 1, 5], num_negatives=(1, 2), seed=range(2))
  expected = [
      (.1, 1, 0), (.1, 1, 1), (.1, 2, 0), (.1, 2, 1), (1., 1, 0), (1., 1, 1),
      (1., 2, 0), (1., 2, 1), (5., 1, 0), (5., 1, 1), (5., 2, 0), (5., 2, 1)]
  assert fields(sweep, 'mu', 'num_negatives', 'seed') == expected
  assert sweep.axes == ('mu', 'num_negatives', 'seed')
  assert sweep.merged == 0
  assert {config.dataset for config in sweep.configs} == {'digits'}


def test_each_run_has_the_directory_of_a_single_run():
  """Also with a flag file's mu of MOON, which FedAvg ignores."""
  base = dataclasses.replace(BASE, mu=5.)
  sweep = Sweep.grid(base, algorithm=['fedavg', 'moon'], seed=[0, 1])
  for config, (algorithm, seed) in zip(
      sweep.configs, [('fedavg', 0), ('fedavg', 1), ('moon', 0), ('moon', 1)]):
    single = checks.validate(dataclasses.replace(
        base, algorithm=algorithm, seed=seed))
    assert Workdir(config).path == Workdir(single).path


def test_values_have_the_type_of_their_flag():
  sweep = Sweep.grid(BASE, mu=np.array([1, 5]), seed=np.arange(2),
                     augment=[np.bool_(True), False])
  assert {tuple(map(type, run)) for run in fields(
      sweep, 'mu', 'seed', 'augment')} == {(float, int, bool)}
  plain = Sweep.grid(BASE, mu=[1, 5], seed=[0, 1], augment=[True, False])
  assert plain == sweep


def test_arguments_of_the_base_stay_beside_an_axis_of_arguments():
  base = dataclasses.replace(
      BASE, algorithm='fedntd', algorithm_args='tau=2')
  sweep = Sweep.grid(base, distill_weight=[.1, .2])
  assert fields(sweep, 'algorithm_args') == [
      ('tau=2,distill_weight=0.1',), ('tau=2,distill_weight=0.2',)]


def test_an_axis_without_effect_on_a_method_adds_no_runs():
  sweep = Sweep.grid(BASE, algorithm=['fedavg', 'moon'], mu=[1, 5])
  assert fields(sweep, 'algorithm', 'mu') == [
      ('fedavg', 0.), ('moon', 1.), ('moon', 5.)]
  assert sweep.merged == 1


@pytest.mark.parametrize('base, axes, runs', [
    ({}, dict(partition=['iid', 'dirichlet'], beta=[.1, .5]), 3),
    ({}, dict(algorithm=['centralized', 'fedavg'], num_clients=[5, 10]), 3),
    ({}, dict(dropout_rate=[0, .1],
              dropout_stage=['before_training', 'after_training']), 3),
    ({}, dict(projection_head=[True, False], projection_dim=[64, 256]), 3),
    (dict(algorithm='fedavg'),
     dict(server_optimizer=['sgd', 'adam'], server_momentum=[0, .9]), 3),
    ({}, dict(mu=[-1, 5]), 1),
    ({}, dict(lanes=[1, 2]), 1),
])
def test_equal_runs_are_one(base, axes, runs):
  sweep = Sweep.grid(dataclasses.replace(BASE, **base), **axes)
  combinations = np.prod([len(values) for values in axes.values()])
  assert (len(sweep.configs), sweep.merged) == (runs, combinations - runs)
  assert len({identity.fingerprint(c) for c in sweep.configs}) == runs


def test_runs_are_equal_by_contents_and_not_by_hashes():
  """The first 32 bits of the hashes of these two are the same."""
  config = mj.Config(dataset='digits', model='mlp', algorithm='fedavg')
  sweep = Sweep.grid(config, seed=[13109, 16298])
  assert fields(sweep, 'seed') == [(13109,), (16298,)] and not sweep.merged
  assert len({Workdir(run).path for run in sweep.configs}) == 2


def test_files_with_different_names_are_different_runs(tmp_path):
  """Their names are not part of a fingerprint; their content is hashed."""
  paths = [str(tmp_path / name) for name in 'ab']
  assert fields(Sweep.grid(BASE, init_from=paths), 'init_from') == [
      (path,) for path in paths]


def test_a_union_keeps_the_order_and_has_each_run_once():
  sweep = (Sweep.grid(BASE, mu=[5, 1])
           | Sweep.grid(BASE, algorithm=['fedavg', 'moon'])
           | Sweep.grid(BASE, mu=[2]))
  assert fields(sweep, 'algorithm', 'mu') == [
      ('moon', 5.), ('moon', 1.), ('fedavg', 0.), ('moon', 2.)]
  assert sweep.axes == ('mu', 'algorithm')
  assert sweep.merged == 1


@pytest.mark.parametrize('axes, message', [
    (dict(mu=[-3], seed=[0]), '^grid mu=-3 seed=0: mu must be at least 0'),
    (dict(mu=[1, 5, 1.]), 'mu must have distinct values, got 1.0 twice'),
    (dict(optimizer='sgd'), "optimizer must be a list of values, got 'sgd'"),
    (dict(seed=[1.]), '^Sweep.grid: seed must be an int; got 1.0'),
    (dict(seed=range(73), mu=range(137)), 'at most 10,000 runs, got 10,001'),
    (dict(optimizer=['sgd', 'lion']),
     '^Sweep.grid: optimizer must be one of sgd, adam, amsgrad; '),
])
def test_invalid_grids_are_errors(axes, message):
  with pytest.raises(mj.UserError, match=message):
    Sweep.grid(BASE, **axes)


def test_a_mu_does_not_reach_another_method():
  base = dataclasses.replace(BASE, mu=5.)
  with pytest.raises(mj.UserError, match=(
      'grid algorithm=fedprox: mu=5.0 is for algorithm=moon; give mu for')):
    Sweep.grid(base, algorithm=['moon', 'fedprox'])
  both = Sweep.grid(BASE, algorithm=['moon', 'fedprox'])
  assert fields(both, 'mu') == [(5.,), (.01,)]
  Sweep.grid(base, algorithm=['moon', 'fedprox'], mu=[1])


@pytest.mark.parametrize('mu', [-1., 0.])
def test_a_block_resets_a_mu_that_its_method_ignores(mu):
  base = dataclasses.replace(BASE, algorithm='moon', mu=5.)
  moon, fedavg = grid_lib.each(
      base, [{'mu': 1.}, {'algorithm': 'fedavg', 'mu': mu}])
  assert fields(moon, 'mu') == [(1.,)]
  assert fields(fedavg, 'mu') == [(0.,)]


def test_the_workdir_of_a_run_is_refused():
  with pytest.raises(mj.UserError, match='workdir=x is the directory of one'):
    Sweep.grid(dataclasses.replace(BASE, workdir='x'), seed=[0])


def test_settings_of_a_block_are_used_or_refused():
  """A fixed mu counts for MOON only; alone with FedAvg it is an error."""
  both, = grid_lib.each(
      BASE, [{'algorithm': ('fedavg', 'moon'), 'mu': 1.}])
  assert fields(both, 'mu') == [(0.,), (1.,)]
  with pytest.raises(mj.UserError, match='--mu has no effect on any run, with'
                     ' --algorithm=fedavg; remove it'):
    grid_lib.each(BASE, [{'algorithm': 'fedavg', 'mu': 1.}])
  # moon_jax.train accepts this beta, which is part of the directory's name.
  iid, = grid_lib.each(BASE, [{'partition': 'iid', 'beta': .1}])
  assert fields(iid, 'beta') == [(.1,)]


@pytest.mark.parametrize('text, expected', [
    ('mu=0.1,1,5', ('mu', (.1, 1., 5.))),
    ('seed=0,1', ('seed', (0, 1))),
    ('augment=true,false', ('augment', (True, False))),
    ('algorithm=fedavg, mine:make', ('algorithm', ('fedavg', 'mine:make'))),
])
def test_arguments_are_parsed(text, expected):
  name, axis = values.parse_axis(text)
  assert (name, axis) == expected
  assert list(map(type, axis)) == list(map(type, expected[1]))


@pytest.mark.parametrize('text, message', [
    ('mu', "--grid must be NAME=V1,V2,..., got 'mu'; write --grid mu=VALUE"),
    ('mu=1,,2', 'lists in a file of --sweep may hold empty strings'),
    ('seed=1.5', "--seed must be an int; got '1.5'"),
    ('augment=2', "--augment must be a bool; got '2'"),
    ('moo=1', "--grid moo=1 must name a setting of a run, got 'moo'"),
])
def test_invalid_arguments_are_errors(text, message):
  with pytest.raises(mj.UserError) as error:
    values.parse_axis(text)
  assert message in str(error.value)


@pytest.mark.parametrize('value, text', [
    (5., '5'), (.1, '0.1'), (1e-5, '1e-05'), (True, 'True'), ('1.0', '1.0')])
def test_values_are_shown(value, text):
  assert values.show(value) == text
