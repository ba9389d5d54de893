"""Combinations of flags that split the data."""

import pytest

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.simulation import checks


@pytest.mark.parametrize('changes, words', [
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
])
def test_combinations(changes, words):
  with pytest.raises(UserError, match=words):
    checks.validate(Config(**changes))


def test_one_client_may_train_on_few_examples():
  assert checks.validate(Config(algorithm='centralized', train_examples=9))


def test_all_examples_may_be_noisy():
  config = checks.validate(Config(algorithm='centralized', label_noise=.2))
  assert config.num_clients == 1 and config.partition == 'iid'
