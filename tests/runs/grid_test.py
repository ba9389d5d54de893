"""Sweeps: their runs, their order, equal runs, and arguments of --grid."""

import dataclasses
import hashlib

import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import Part
from moon_jax.runs import grid as grid_lib
from moon_jax.runs import identity, values
from moon_jax.runs.directory import Workdir
from moon_jax.runs.grid import Sweep
from moon_jax.simulation import checks

BASE = mj.Config(dataset='digits', num_rounds=2)


def fields(sweep, *names):
  """Returns settings and arguments of parts; parts as text."""
  found = [[values.get(config, name) for name in names]
           for config in sweep.configs]
  return [tuple(str(x) if isinstance(x, Part) else x for x in row)
          for row in found]


def test_a_grid_has_all_combinations_and_the_last_axis_is_fastest():
  names = 'algorithm.mu', 'algorithm.num_negatives', 'seed'
  sweep = Sweep.grid(BASE, **dict(zip(names, ([.1, 1, 5], (1, 2), range(2)))))
  expected = [
      (.1, 1, 0), (.1, 1, 1), (.1, 2, 0), (.1, 2, 1), (1., 1, 0), (1., 1, 1),
      (1., 2, 0), (1., 2, 1), (5., 1, 0), (5., 1, 1), (5., 2, 0), (5., 2, 1)]
  assert fields(sweep, *names) == expected
  assert sweep.axes == names
  assert sweep.merged == 0
  assert {config.dataset for config in sweep.configs} == {'digits'}


def test_each_run_has_the_directory_of_a_single_run():
  """A call replaces the arguments of the base."""
  base = dataclasses.replace(BASE, algorithm='moon(mu=1)')
  sweep = Sweep.grid(base, algorithm=['fedavg', 'moon'], seed=[0, 1])
  for config, (algorithm, seed) in zip(
      sweep.configs, [('fedavg', 0), ('fedavg', 1), ('moon', 0), ('moon', 1)]):
    single = checks.validate(dataclasses.replace(
        base, algorithm=algorithm, seed=seed))
    assert Workdir(config).path == Workdir(single).path


def test_values_have_the_type_of_their_flag():
  sweep = Sweep.grid(BASE, seed=np.arange(2), augment=[np.bool_(True), False],
                     **{'algorithm.mu': np.array([1, 4])})
  assert {tuple(map(type, run)) for run in fields(
      sweep, 'algorithm.mu', 'seed', 'augment')} == {(float, int, bool)}
  plain = Sweep.grid(BASE, seed=[0, 1], augment=[True, False],
                     **{'algorithm.mu': [1, 4]})
  assert plain == sweep


def test_arguments_of_the_base_stay_beside_an_axis_of_arguments():
  base = dataclasses.replace(
      BASE, algorithm='fedntd(tau=2)')
  sweep = Sweep.grid(base, **{'algorithm.distill_weight': [.1, .2]})
  assert fields(sweep, 'algorithm') == [
      ('fedntd(distill_weight=0.1, tau=2)',),
      ('fedntd(distill_weight=0.2, tau=2)',)]


def test_an_axis_that_a_method_does_not_have_is_an_error():
  with pytest.raises(mj.UserError, match=(
      r'grid algorithm=fedavg algorithm\.mu=1: algorithm=fedavg has '
      'no arguments; got mu=1')):
    Sweep.grid(BASE, algorithm=['fedavg', 'moon'], **{'algorithm.mu': [1, 5]})


def test_calls_are_values():
  """Those of one run, written otherwise, are one."""
  sweep = Sweep.grid(BASE, algorithm=[
      'fedavg', 'moon(mu=1)', 'moon', 'moon(mu=5.0)'])
  assert fields(sweep, 'algorithm') == [
      ('fedavg',), ('moon(mu=1)',), ('moon',)]
  assert sweep.merged == 1
  assert Sweep.grid(BASE, **{'rounds.concurrency': [3]}, clock=['lognormal'],
                    rounds=['fedasync']).configs[0].args('rounds')[
                        'concurrency'] == 3  # has no default


@pytest.mark.parametrize('base, axes, runs', [
    ({}, dict(partition=['dirichlet', 'dirichlet(beta=0.5)']), 1),
    ({}, dict(algorithm=['centralized', 'fedavg'], num_clients=[5, 10]), 3),
    (dict(algorithm='fedavg'),
     {'server': ['sgd', 'sgd(momentum=.9)'], 'server.learning_rate': [.1, 1]},
     4),
    ({}, {'algorithm': ['moon', 'moon(mu=1)'], 'algorithm.pool': ['newest']},
     2),
    ({}, dict(lanes=[1, 2]), 1),
])
def test_equal_runs_are_one(base, axes, runs):
  sweep = Sweep.grid(dataclasses.replace(BASE, **base), **axes)
  combinations = np.prod([len(values) for values in axes.values()])
  assert (len(sweep.configs), sweep.merged) == (runs, combinations - runs)
  assert len({identity.fingerprint(c) for c in sweep.configs}) == runs


def test_runs_are_equal_by_contents_and_not_by_hashes(monkeypatch):
  """Hashes, which name directories, may be equal by chance."""
  config = mj.Config(dataset='digits', model='mlp', algorithm='fedavg')
  assert len(identity.fingerprint(config)) == 16
  hashed = hashlib.sha256
  monkeypatch.setattr(hashlib, 'sha256', lambda *_: hashed())
  sweep = Sweep.grid(config, seed=[0, 1])
  assert fields(sweep, 'seed') == [(0,), (1,)] and not sweep.merged


def test_files_with_different_names_are_different_runs(tmp_path):
  """Their names are not part of a fingerprint; their content is hashed."""
  paths = [str(tmp_path / name) for name in 'ab']
  assert fields(Sweep.grid(BASE, init_from=paths), 'init_from') == [
      (path,) for path in paths]


def test_a_union_keeps_the_order_and_has_each_run_once():
  sweep = (Sweep.grid(BASE, **{'algorithm.mu': [5, 1]})
           | Sweep.grid(BASE, algorithm=['fedavg', 'moon'])
           | Sweep.grid(BASE, **{'algorithm.mu': [2]}))
  assert fields(sweep, 'algorithm') == [
      ('moon',), ('moon(mu=1)',), ('fedavg',), ('moon(mu=2)',)]
  assert sweep.axes == ('algorithm.mu', 'algorithm')
  assert sweep.merged == 1
  merged = Sweep.grid(BASE, lanes=[1, 2])  # two equal runs
  assert ((sweep | merged).merged, (merged | sweep).merged) == (3, 3)


@pytest.mark.parametrize('axes, message', [
    ({'algorithm.mu': [-3], 'seed': [0]},
     r'^grid algorithm\.mu=-3 seed=0: algorithm\.mu must be at least 0'),
    ({'algorithm.mu': [1, 5, 1.]},
     r'algorithm\.mu must have distinct values; got 1 twice'),
    ({'algorithm.moo': [1]}, 'algorithm=moon has the arguments num_negatives'),
    ({'seed.mu': [1]}, "must name a setting of a run; got 'seed.mu'"),
    (dict(optimizer='sgd'), "optimizer must be a list of values; got 'sgd'"),
    (dict(seed=[1.]), '^Sweep.grid: seed must be an integer; got 1.0'),
    (dict(seed=range(73), num_rounds=range(1, 138)),
     'at most 10,000 runs; got 10,001'),
    (dict(optimizer=['sgd', 'lyon']),
     '^Sweep.grid: optimizer must be one of sgd, adam, amsgrad, '),
])
def test_invalid_grids_are_errors(axes, message):
  with pytest.raises(mj.UserError, match=message):
    Sweep.grid(BASE, **axes)


def test_a_block_replaces_the_part_or_an_argument_of_the_base(of_command):
  base = dataclasses.replace(BASE, algorithm='moon(mu=2, temperature=0.1)')
  blocks = grid_lib.each(base, [
      {'algorithm.mu': 1.}, {'algorithm': 'fedprox'}, {'algorithm': 'moon'},
      {'algorithm': ('fedprox', 'moon'), 'algorithm.mu': 1.}])
  assert [fields(block, 'algorithm') for block in blocks] == [
      [('moon(mu=1, temperature=0.1)',)], [('fedprox',)], [('moon',)],
      [('fedprox(mu=1)',), ('moon(mu=1)',)]]
  with pytest.raises(mj.UserError, match=(
      '^--algorithm=fedavg has no arguments; got mu=1')):
    grid_lib.each(BASE, [{'algorithm': 'fedavg', 'algorithm.mu': 1.}])


def test_messages_name_a_run_by_the_arguments_that_its_functions_have():
  sweep = Sweep.grid(BASE, seed=[0], algorithm=['fedavg'])
  sweep |= Sweep.grid(BASE, **{
      'seed': [0], 'algorithm': ['moon'], 'algorithm.mu': [5.],
      'model.projection_dim': [None]})
  axes = 'algorithm', 'algorithm.mu', 'model.projection_dim'
  assert [values.run_name(config, axes) for config in sweep.configs] == [
      'run algorithm=fedavg model.projection_dim=256',
      'run algorithm=moon algorithm.mu=5 model.projection_dim=None']


def test_the_workdir_of_a_run_is_refused():
  with pytest.raises(mj.UserError, match='workdir=x is the directory of one'):
    Sweep.grid(dataclasses.replace(BASE, workdir='x'), seed=[0])


@pytest.mark.parametrize('text, expected', [
    ('algorithm.mu=0.1,1,5', ('algorithm.mu', (.1, 1, 5))),
    ('algorithm.pool=newest,released',
     ('algorithm.pool', ('newest', 'released'))),
    ('model.projection_dim=None,64', ('model.projection_dim', (None, 64))),
    ('seed=0,1', ('seed', (0, 1))),
    ('augment=true,false', ('augment', (True, False))),
    ('algorithm=fedavg, moon(mu=1, pool=released)', ('algorithm', (
        Part('fedavg'), Part('moon', (('mu', 1), ('pool', 'released')))))),
])
def test_arguments_are_parsed(text, expected):
  name, axis = values.parse_axis(text)
  assert (name, axis) == expected
  assert list(map(type, axis)) == list(map(type, expected[1]))


@pytest.mark.parametrize('text, message', [
    ('seed', "--grid must be NAME=V1,V2,...; got 'seed'. Write --grid "
     'seed=VALUE'),
    ('mu=1,5', "--grid mu=1,5 must name a setting of a run; got 'mu'; "
     "the nearest is 'algorithm.mu'"),
    ('algorithm=moom', 'Did you mean --algorithm=moon?'),
    ('algorithm.mu=1,,2', 'Lists in a TOML file may hold empty strings'),
    ('seed=1.5', "--seed must be an integer; got '1.5'"),
    ('augment=2', "--augment must be True or False; got '2'"),
    ('moo=1', "--grid moo=1 must name a setting of a run; got 'moo'"),
])
def test_invalid_arguments_are_errors(text, message, of_command):
  with pytest.raises(mj.UserError) as error:
    values.parse_axis(text)
  assert message in str(error.value)


@pytest.mark.parametrize('value, text', [
    (5., '5'), (.1, '0.1'), (1e-5, '1e-5'), (True, 'True'), ('1.0', '1.0')])
def test_values_are_shown(value, text):
  assert values.show(value) == text
