"""Arguments of --grid as values."""

import pytest

from moon_jax.errors import UserError
from moon_jax.sweep import values


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
    ('mu=', '--grid mu=: mu must have values between commas, got an empty'),
    ('mu=1,,2', 'lists in a file of --sweep may hold empty strings'),
    ('seed=1.5', "seed must be of type int, got '1.5'"),
    ('augment=2', "augment must be of type bool, got '2'"),
    ('moo=1', "--grid moo=1 must name a flag of a run, got 'moo'"),
    ('data_dir=a', 'which all runs of a sweep share'),
    ('mu=1,1.0', 'mu must have distinct values, got 1.0 twice'),
])
def test_invalid_arguments_are_errors(text, message):
  with pytest.raises(UserError) as error:
    values.parse_axis(text)
  assert message in str(error.value)


@pytest.mark.parametrize('value, text', [
    (5., '5'), (.1, '0.1'), (1e-5, '1e-05'), (True, 'True'), ('1.0', '1.0')])
def test_values_are_shown(value, text):
  assert values.show(value) == text
