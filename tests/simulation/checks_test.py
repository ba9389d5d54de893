"""Errors name the flag, its value and a remedy, for each limit."""

import dataclasses
from fractions import Fraction
import json
import pathlib
import re
import tomllib

import jax
import numpy as np
import pytest

from moon_jax.config import Config, DATASETS, kinds, Part, parts
from moon_jax.data.sources import SOURCES
from moon_jax.errors import UserError
from moon_jax.methods import registry
from moon_jax.simulation import build, checks
from moon_jax.simulation.program import Program
from support import small_runs
from support.docs_pages import config_of

pytestmark = pytest.mark.usefixtures('of_command')


@pytest.mark.parametrize('field, value', [
    *((name, 0) for name in (
        'num_clients', 'num_rounds', 'local_epochs', 'batch_size',
        'eval_every')),
    ('participation', 0.), ('learning_rate', 0.), ('client_test_fraction', 1.),
    ('participation', 1.5), ('num_rounds', 10**9), ('learning_rate', 1e-45),
    ('seed', 2**32), ('partition_seed', 2**32), ('dataset', 'mine:'),
    ('algorithm', 'fedsgd'), ('algorithm', 'a b:c'), ('optimizer', 'nesterov'),
    ('workdir', '~no_such_user/x'),
])
def test_out_of_range(field, value):
  words = f'--{field}.*{re.escape(str(value))}'
  with pytest.raises(UserError, match=words) as error:
    checks.validate(Config(**{field: value}))
  assert str(error.value).count('\n') <= 1


@pytest.mark.parametrize('kind, call', [
    ('partition', 'shards(shards_per_client=0)'),
    ('partition', 'dirichlet(beta=0)'), ('partition', 'dirichlet(beta=1e999)'),
    ('model', 'mlp(projection_dim=0)'), ('algorithm', 'moon(num_negatives=0)'),
    ('algorithm', 'moon(temperature=0)'), ('algorithm', 'moon(mu=-2)'),
    ('algorithm', 'moon(mu=1e300)'), ('algorithm', 'moon(temperature=1e-45)'),
    ('server', 'sgd(learning_rate=0)'), ('optimizer', 'sgd(momentum=1)'),
    ('optimizer', 'adamw(weight_decay=x)'), ('schedule', 'step(every=0)'),
    ('labels', 'noise(rate=1)'), ('compress', 'top_k(fraction=2)'),
    ('rounds', 'synchronous(dropout_rate=1)'),
    ('privacy', 'client(delta=0, clip=1)'),
    ('privacy', 'client(delta=1, clip=1)'),
    ('privacy', 'client(noise_multiplier=1e20, clip=1)'),
    ('privacy', 'client(clip=1e-25)'), ('privacy', 'client(clip=-1)'),
    ('cohort', 'file(path="~no_such_user/x")'),
])
def test_arguments_out_of_range(kind, call):
  """The first one is."""
  name, value = re.search(r'\((\w+)="?([^",)]+)', call).groups()
  shown = {'1e999': 'inf', '1e300': '1e+300', '1e20': '1e+20'}.get(value, value)
  config = Config(**{'algorithm': 'fedavg', 'weighting': 'uniform', kind: call})
  with pytest.raises(UserError, match=f'--{kind}.{name}.*{re.escape(shown)}'
                     ) as error:
    checks.validate(config)
  assert str(error.value).count('\n') <= 1


@pytest.mark.parametrize('kind, value', [
    (int, -2), (float, -3.), (float, float('nan')), (str, '\u00df\u2603')])
def test_each_setting_has_limits(kind, value):
  for field in dataclasses.fields(Config):
    if field.type is kind and (kind is not str or field.metadata['choices']
                               or field.name == 'dataset'):
      with pytest.raises(UserError, match=f'--{field.name}'):
        checks.validate(Config(**{field.name: value}))


SETTINGS = tomllib.loads((pathlib.Path(__file__).parents[1] / (
    'invalid_input.toml')).read_text(encoding='utf-8'))['settings']


@pytest.mark.parametrize('flags', SETTINGS)
def test_settings_that_do_not_fit_together(flags):
  with pytest.raises(UserError) as error:
    checks.validate(config_of(flags))
  for word in SETTINGS[flags]:
    assert word in str(error.value)


@pytest.mark.parametrize('flags', [
    '--privacy=client --attack=label_flip',
    '--privacy=client --attack=backdoor',
    '--privacy=client --cohort=file --cohort.path=a',
    '--privacy=example --cohort=file --cohort.path=a',
    '--privacy=example --topology=cfl --topology.clusters=2'])
def test_privacy_allows_what_reads_no_losses_and_no_updates(flags):
  checks.validate(config_of(
      f'{flags} --privacy.clip=1 --weighting=uniform --algorithm=fedavg'))


def test_what_is_left_open_is_filled_in():
  assert checks.validate(Config()).args('algorithm')['mu'] == 5
  alone = checks.validate(Config(
      algorithm='centralized', participation=.2, num_clients=50))
  assert alone.num_clients == alone.cohort_size() == 1
  assert checks.validate(alone) == alone
  few = checks.validate(Config(
      algorithm='centralized', train_examples=9))
  assert few.num_clients == 1 and few.partition.name == 'iid'
  assert Config(seed=3, partition_seed=0).split_seed() == 0
  assert Config(seed=3).split_seed() == 3


@pytest.mark.parametrize('arguments', [
    'dtype=bfloat16, convolution=native', 'precision=tf32x3',
    'precision=tf32, convolution=native', 'precision=bfloat16'])
def test_arithmetic_that_there_is(arguments):
  checks.validate(Config(model=f'resnet18({arguments})'))


def test_equal_calls_are_equal_once_valid():
  one, other = (checks.validate(Config(algorithm=text)) for text in (
      'moon(temperature=0.5, mu=1)', 'moon(mu=1.0)'))
  assert one == other and str(one.algorithm) == 'moon(mu=1)'
  assert checks.validate(one) == one


def test_scalars_of_other_types_are_numbers_of_python_once_valid():
  """So the recorded command has the numbers that are used."""
  rate = np.float32(.01)
  config = checks.validate(Config(
      seed=np.array(3), learning_rate=rate, gradient_clip=Fraction(1, 8),
      algorithm=Part('moon', {'mu': np.float32(1)})))
  assert float(rate) != .01 and config.command() == (
      "python -m moon_jax.train --algorithm='moon(mu=1)' "
      f'--learning_rate={float(rate)} --gradient_clip=0.125 --seed=3')
  json.dumps(config.to_dict())


def test_cohorts_are_rounded_down():
  for num_clients, participation, size in [
      (10, .29, 2), (10, .3, 3), (3, .5, 1), (100, .1, 10), (7, 1., 7),
      *[(n, float(f'{count / n:.12g}'), count) for n in (100, 3400)
        for count in range(1, 100)]]:
    config = Config(num_clients=num_clients, participation=participation)
    assert config.cohort_size() == size, (num_clients, participation)


@pytest.mark.parametrize('num_clients', [3, 999])
def test_remedy_for_a_cohort_of_none_works(num_clients):
  with pytest.raises(UserError) as error:
    checks.validate(Config(num_clients=num_clients, participation=1e-4))
  enough = float(re.search('to ([0-9.]+) or more', str(error.value))[1])
  checks.validate(Config(num_clients=num_clients, participation=enough))


def test_choices_are_what_there_is():
  of_calls = {*kinds.KINDS['dataset'].functions}
  assert {*DATASETS} == {*SOURCES} | of_calls
  assert not of_calls & {*SOURCES}
  assert {*kinds.KINDS['algorithm'].functions} == set(registry.METHODS)
  for kind, known in kinds.KINDS.items():
    for name in known.functions:
      assert callable(parts.function_of(kind, Part(name)))


def test_command_tells_what_is_not_default():
  config = Config(algorithm='moon(mu=1)', augment=False, seed=3, data_dir='x',
                  workdir='y')
  assert config.command() == (
      "python -m moon_jax.train --data_dir=DATA_DIR --algorithm='moon(mu=1)' "
      '--noaugment --seed=3')


@pytest.mark.long
def test_fedphp_computes_with_simulated_time_what_it_computes_without():
  config = dataclasses.replace(
      small_runs.CONFIG, algorithm='fedphp',
      rounds='synchronous(dropout_rate=0.3)')
  program = Program([build.federation(dataclasses.replace(config, clock=clock))
                     for clock in ('none', 'lognormal')])
  for _ in range(config.num_rounds):
    plain, timed = program.run_round([0, 1])
    assert timed.metrics.pop('simulated_seconds') > 0
    assert plain.metrics == timed.metrics
  jax.tree.map(np.testing.assert_array_equal,
               *(program.state_on_host(run) for run in (0, 1)))


@pytest.mark.parametrize('stage', ['before_training', 'after_training'])
def test_fedphp_expects_the_rounds_in_which_clients_train(stage):
  config = dataclasses.replace(
      small_runs.CONFIG, algorithm='fedphp', num_rounds=400,
      rounds=f'synchronous(dropout_rate=0.4, dropout_stage={stage})')
  federation = build.federation(config)
  trained = sum(part > 0 for cohort in federation.first_cohorts(400)
                for part in cohort.steps_fraction)
  assert trained / 400 / config.num_clients == pytest.approx(
      federation.algorithm.hparams['participation'], rel=.05)


def test_centralized_has_the_noise_and_the_failures_of_one_client():
  config = dataclasses.replace(
      small_runs.CONFIG, labels='noise(rate=0.3)',
      rounds='synchronous(dropout_rate=0.5)')
  central, single = (
      build.federation(dataclasses.replace(config, **changes)) for changes in (
          dict(algorithm='centralized'),
          dict(num_clients=1, participation=1., partition='iid')))
  for name in 'train_labels', 'train_inputs':
    np.testing.assert_array_equal(*(
        getattr(made.data, name) for made in (central, single)))
  np.testing.assert_array_equal(central.clients[0], single.clients[0])
  cohorts = central.first_cohorts(20)
  assert cohorts == single.first_cohorts(20)
  assert 0 < sum(cohort.lost[0] for cohort in cohorts) < 20
