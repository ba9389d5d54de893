"""Tests the types and ranges of single settings."""

import fractions
import os
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.config import Config, limits
from moon_jax.errors import UserError

pytestmark = pytest.mark.usefixtures('of_command')

NAN = float('nan')


@pytest.mark.parametrize('name, value, message', [
    ('num_rounds', 2., '--num_rounds must be an integer; got 2.0. Pass --'),
    ('num_rounds', NAN, '--num_rounds must be an integer; got nan'),
    ('num_rounds', None, '--num_rounds must be an integer; got None'),
    ('seed', np.arange(2), r'--seed must be an integer; got array\(\[0, 1\]\)'),
    ('learning_rate', np.ones(2), '--learning_rate must be a finite number'),
    ('augment', 'yes', "--augment must be True or False; got 'yes'"),
    # Text is true, whatever it says.
    ('augment', 'false', "--augment must be True or False; got 'false'"),
    ('augment', 2, '--augment must be True or False; got 2'),
    ('augment', NAN, '--augment must be True or False; got nan'),
    ('data_dir', 3, '--data_dir must be a word or text; got 3'),
    ('metrics', ['f1', 'auroc'], "--metrics must.*. Pass --metrics='f1,auroc'"),
    ('data_dir', NAN, '--data_dir must be a word or text; got nan'),
    ('algorithm', max, 'must be a name or a call.*moon_jax.Federation'),
    ('learning_rate', NAN, '--learning_rate must be a finite.*got nan'),
    ('learning_rate', 0., '--learning_rate must be above 0; got 0.0'),
    ('validation_fraction', 1.,
      '--validation_fraction must be below 1; got 1.0'),
    ('batch_size', 2**31, '--batch_size must be at most 2147483647; got'),
    ('num_rounds', 10**8, '--num_rounds must be at most 10000000; got'),
    ('local_epochs', .5, '--local_epochs must be an integer; got 0.5. --loc'),
    ('seed', 2**32, '--seed must be at most 4294967295; got 4294967296'),
    ('num_clients', 0, '--num_clients must be at least 1; got 0. The def'),
    ('last_batch', 'half', "--last_batch must be one of drop, keep; got 'ha"),
])
def test_invalid_values_raise(name, value, message):
  with pytest.raises(UserError, match=message):
    limits.check(Config(**{name: value}))


@pytest.mark.parametrize('name, value', [
    ('learning_rate', 1), ('participation', np.float32(.5)),
    ('seed', np.int64(3)), ('augment', np.bool_(False)),
    ('seed', np.array(3)), ('learning_rate', fractions.Fraction(1, 8)),
    ('learning_rate', jnp.float32(.01)),
    ('workdir', pathlib.Path('runs', 'a')),
    ('gradient_clip', 1),  # equal values of other types
    ('validation_fraction', 0.), ('batch_size', 2**31 - 1),  # limits
    ('seed', 2**32 - 1), ('train_examples', 1_200_000),
    ('eval_examples', 1_200_000), ('num_clients', 2_000_000),
    ('checkpoint_every', 2_000_000), ('num_clients', 1),
    ('partition_seed', -1), ('learning_rate', 1e-30)])
def test_valid_values(name, value):
  """They are returned in the type of their setting."""
  checked = limits.check(Config(**{name: value}))[name]
  value = os.fspath(value) if isinstance(value, pathlib.Path) else value
  assert checked == value and type(checked) is type(getattr(Config, name))
