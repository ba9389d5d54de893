"""Errors name the flag, its value and a remedy, for each limit."""

import dataclasses
import re

import numpy as np
import pytest

from moon_jax import config as config_lib
from moon_jax.algorithms import registry
from moon_jax.config import ALGORITHMS, Config, DATASETS
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import SOURCES
from moon_jax.errors import UserError
from moon_jax.models import MODELS
from moon_jax.optimizers import OPTIMIZERS
from moon_jax.simulation import checks, federation_checks


@pytest.mark.parametrize('field, value', [
    ('dataset', 'imagenet'), ('dataset', 'mine:'), ('noise_std', -.1),
    ('partition', 'by_size'), ('algorithm', 'fedsgd'),
    ('optimizer', 'lion'), ('dtype', 'float16'), ('precision', 'high'),
    ('convolution', 'fft'), ('model', 'vgg'), ('model', 'mine:'),
    ('num_clients', 0), ('participation', 1.5), ('participation', 0.),
    ('beta', 0.), ('beta', float('nan')), ('beta', float('inf')),
    ('shards_per_client', 0),
    ('mu', -2.), ('temperature', 0.), ('num_negatives', 0),
    ('projection_dim', 0), ('num_rounds', 0), ('local_epochs', 0),
    ('batch_size', 0), ('learning_rate', 0.), ('momentum', 1.),
    ('weight_decay', -1.), ('seed', -1), ('seed', 2**32),
    ('partition_seed', -2), ('partition_seed', 2**32), ('eval_every', 0),
    ('checkpoint_every', -1), ('lanes', -1), ('num_rounds', 10**9),
    ('batch_size', 10**20), ('mu', 1e300), ('temperature', 1e-45),
    ('learning_rate', 1e39), ('server_learning_rate', 0.),
    ('dropout_rate', 1.), ('dropout_rate', -.1), ('dropout_stage', 'never'),
    ('proximal_mu', -.1), ('proximal_mu', float('nan')),
    ('aggregation', 'median'), ('scaffold_form', 'x'),
    ('first_negative', 'zeros'), ('negatives_pool', 'oldest'),
    ('dp_clip', -1.), ('dp_noise_multiplier', 1e20), ('dp_delta', 0.),
    ('client_test_fraction', 1.), ('client_test_fraction', -.1),
    ('dp_clip', 1e-25), ('workdir', '~no_such_user/x'),
    ('cohorts_file', '~no_such_user/x'),
    ('dp_delta', 1.), ('client_eval_every', -1), ('eval_examples', -1),
    ('algorithm', 'a b:c'),
    ('algorithm', 'mine:'),
])
def test_out_of_range(field, value):
  words = f'--{field}.*{re.escape(str(value))}'
  with pytest.raises(UserError, match=words) as error:
    checks.validate(Config(**{field: value}))
  assert str(error.value).count('\n') <= 1


@pytest.mark.parametrize('changes, words', [
    (dict(algorithm='scaffold'), 'scaffold needs.*--momentum=0.9'),
    (dict(algorithm='scaffold', optimizer='adam', momentum=0.), 'got.*adam'),
    (dict(algorithm='fednova', optimizer='adam'), 'fednova needs.*adam'),
    (dict(aggregation='scaffold'),
     'moon --aggregation=scaffold needs .*--momentum=0.*niid_bench takes mom'),
    (dict(aggregation='fednova', optimizer='adam'), 'fednova needs.*got.*adam'),
    (dict(algorithm='scaffold', scaffold_form='niid_bench', optimizer='adam'),
     'scaffold needs.*=sgd.*got.*adam'),
    (dict(algorithm='solo', aggregation='fednova'),
     'aggregation=fednova is for --algorithm=fedavg, fedprox, moon; got solo'),
    (dict(algorithm='centralized', proximal_mu=.1), 'got centralized: remove'),
    (dict(algorithm='fednova', aggregation='scaffold'), 'got fednova: remove'),
    (dict(algorithm='fedprox', proximal_mu=.1), 'got fedprox: give --mu'),
    (dict(algorithm='mine:make', aggregation='scaffold'),
     'got mine:make: call moon_jax.with_prox.*in the factory'),
    (dict(aggregation='fednova', weighting='uniform', dp_clip=1.),
     'not --algorithm=moon --aggregation=fednova; use.*=average'),
    (dict(server_optimizer='adam', server_momentum=.9), 'server_momentum=0.9'),
    (dict(algorithm='solo', server_momentum=.9), 'solo has no server'),
    (dict(algorithm_args='a=1'), 'algorithm_args=a=1 is for a custom'),
    (dict(model_args='a=1'), 'model_args=a=1 is for a custom network'),
    (dict(cohorts_file='x', participation=.5), 'cohorts_file=x.*participation'),
    (dict(cohorts_file='x', algorithm='centralized'), 'one client.*=x'),
    (dict(algorithm='centralized', partition='natural'),
     'centralized.*remove --partition=natural'),
    (dict(precision='tf32', dtype='bfloat16'),
     '--precision=tf32 is for --dtype=float32; got --dtype=bfloat16'),
    (dict(precision='tf32', model='char_lstm'), 'char_lstm.*got tf32'),
    (dict(precision='bfloat16', model='resnet18', convolution='native'),
     'native computes at.*got bfloat16. Give --convolution=im2col'),
    (dict(client_test_fraction=.2, num_rounds=7),
     'client_test_fraction=0.2 holds .*; give --client_eval_every=7 to'),
    (dict(dp_noise_multiplier=1.), 'multiplier=1.0.*give --dp_clip'),
    (dict(dp_clip=1.), 'dp_clip=1.0.*weighting=uniform'),
    (dict(augment=False, augmentation_draws='recurring'),
     'recurring needs --augment'),
    (dict(dp_clip=1., weighting='uniform', algorithm='fednova'),
     'not --algorithm=fednova'),
    (dict(keep_best=True), '--keep_best selects .* --keep_best=True without'),
    (dict(early_stopping=3), '--early_stopping=3 without'),
    (dict(keep_best=True, validation_fraction=.1, algorithm='solo'),
     '--algorithm=solo has none'),
    (dict(metrics='accuracy'), "must list names of .* got 'accuracy'"),
    (dict(validation_fraction=1.), 'at least 0 and below 1; got 1.0'),
    (dict(early_stopping=-1), '--early_stopping must be at least 0'),
    (dict(eval_on='valid'), '--eval_on must be one of test, train'),
    # Splits.
    (dict(partition='own'), 'partition must be one of.*MODULE:FUNCTION'),
    (dict(partition_file='a.npz', partition='iid'), 'remove --partition=iid'),
    (dict(label_noise=1.), 'label_noise must be at least 0 and below 1'),
    (dict(label_noise_form='localized'), 'localized needs --label_noise'),
    (dict(train_examples=-1), 'train_examples must be at least 0'),
    (dict(train_examples=9), '=9 must be at least --num_clients=10'),
    (dict(train_examples=90, partition_file='a'), 'remove --train_examples=90'),
    (dict(concept_shift=0), 'concept_shift must be at least 1'),
    (dict(concept_shift=11), 'at most --num_clients=10'),
    (dict(concept_shift=2, algorithm='centralized'), 'remove --concept_shift'),
    (dict(label_noise=.1, label_noise_form='localized',
          algorithm='centralized'), 'remove --label_noise_form=localized'),
    (dict(partition='a:b', algorithm='centralized'), 'remove --partition=a:b'),
    (dict(partition_file='a', algorithm='centralized'), '--partition_file=a'),
    (dict(participation=.05), 'samples no client.*0.1 or more'),
])
def test_combinations(changes, words):
  with pytest.raises(UserError, match=words):
    checks.validate(Config(**changes))


def test_more_test_examples_than_there_are():
  dataset = sources.load('digits', '')
  with pytest.raises(UserError, match=(
      '--eval_examples must be at most the 359 test examples of '
      '--dataset=digits; got 360. --eval_examples=0 uses all')):
    federation_checks.check_dataset(dataset, '--dataset=digits', 360)
  federation_checks.check_dataset(dataset, '--dataset=digits', 359)


def test_what_is_left_open_is_filled_in():
  assert checks.validate(Config()).mu == 5
  assert checks.validate(Config(algorithm='fedprox')).mu == .01
  assert checks.validate(Config(mu=0.)).mu == 0
  alone = checks.validate(Config(
      algorithm='centralized', participation=.2, num_clients=50))
  assert alone.num_clients == alone.cohort_size() == 1
  assert checks.validate(alone) == alone


@pytest.mark.parametrize('changes', [
    dict(dtype='bfloat16', convolution='native'), dict(precision='tf32x3'),
    dict(precision='tf32', convolution='native'), dict(precision='bfloat16')])
def test_arithmetic_that_there_is(changes):
  checks.validate(Config(model='resnet18', **changes))


def test_limits_themselves_are_taken():
  most = 2**32 - 1
  taken = checks.validate(Config(
      seed=most, partition_seed=most, momentum=0., participation=1.,
      dropout_rate=0., num_rounds=10**6, checkpoint_every=10,
      checkpoint_keep_every=30))
  assert taken.split_seed() == most
  assert Config(seed=3, partition_seed=0).split_seed() == 0
  assert Config(seed=3).split_seed() == 3


@pytest.mark.parametrize('num_clients, participation, size', [
    (10, .29, 2), (10, .3, 3), (3, .5, 1), (100, .1, 10), (7, 1., 7)])
def test_cohorts_are_rounded_down(num_clients, participation, size):
  config = Config(num_clients=num_clients, participation=participation)
  assert config.cohort_size() == size


@pytest.mark.parametrize('num_clients', [3, 7, 11, 13, 999])
def test_remedy_for_a_cohort_of_none_works(num_clients):
  with pytest.raises(UserError) as error:
    checks.validate(Config(num_clients=num_clients, participation=1e-4))
  enough = float(re.search('to ([0-9.]+) or more', str(error.value))[1])
  checks.validate(Config(num_clients=num_clients, participation=enough))


def test_defaults_are_valid_and_documented():
  checks.validate(Config())
  assert all(field.metadata['help'] for field in dataclasses.fields(Config))


def test_choices_are_what_there_is():
  choices = {f.name: f.metadata['choices'] for f in dataclasses.fields(Config)}
  assert set(choices['optimizer']) == set(OPTIMIZERS)
  assert set(config_lib.MODELS) == set(MODELS)
  assert set(DATASETS) == set(SOURCES)
  assert set(ALGORITHMS) == set(registry.METHODS)


def test_command_tells_what_is_not_default():
  config = Config(mu=1., augment=False, seed=3, data_dir='x', workdir='y')
  assert config.command() == (
      'python -m moon_jax.train --data_dir=DATA_DIR --mu=1.0 --noaugment '
      '--seed=3')


@pytest.mark.parametrize('label', [-1, 3])
def test_labels_beyond_the_classes_are_refused(label):
  """They would train on nothing, in silence."""
  x, y = np.zeros((2, 4), np.float32), np.array([0, label], np.int32)
  for train, test in ((y, y[:1]), (y[:1], y)):
    dataset = Dataset('mine', x[:len(train)], train, x[:len(test)], test,
                      class_names=('a', 'b', 'c'))
    with pytest.raises(UserError, match='labels must be 0 to 2.*class_names'):
      federation_checks.check_dataset(dataset, 'mine', 0)


def test_one_client_may_train_on_few_and_noisy_examples():
  config = checks.validate(Config(
      algorithm='centralized', train_examples=9, label_noise=.2))
  assert config.num_clients == 1 and config.partition == 'iid'
