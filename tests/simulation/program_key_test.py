"""Tests which configurations may share a program."""

import dataclasses

import pytest

from moon_jax.config import Config
from moon_jax.config import flags_with
from moon_jax.simulation.agreement import program_key

FIXED = flags_with(varies='')
VARYING = set(Config().to_dict()) - set(FIXED)


def changed(config, name):
  """Returns `config` with another value of a field, valid or not."""
  value = getattr(config, name)
  kind = type(getattr(Config(), name))
  other = {bool: lambda: not value, str: lambda: value + 'x',
           int: lambda: value + 1, float: lambda: value + .25}[kind]()
  return dataclasses.replace(config, **{name: other})


# Fields of which only a part varies; the tests below have their changes.
PARTLY = {'partition', 'partition_file', 'label_noise', 'concept_shift',
          'proximal_mu',
          'server_learning_rate', 'server_momentum', 'client_eval_every'}


@pytest.mark.parametrize('name', sorted(VARYING - PARTLY))
def test_varying_fields_leave_the_key(name):
  config = Config(server_momentum=.5, client_eval_every=2)
  assert program_key(config) == program_key(changed(config, name))


@pytest.mark.parametrize('name', sorted(FIXED))
def test_other_fields_change_the_key(name):
  config = Config()
  key = program_key(changed(config, name))
  assert key != program_key(config)
  assert hash(key) == hash(program_key(changed(config, name)))


SERVER = dict(server_momentum=.7)
NOISY = dict(partition='feature_noise')
LABELS = dict(label_noise=.1)
SHIFT = dict(concept_shift=2)
PRIVATE = dict(algorithm='fedavg', weighting='uniform', dp_clip=1.)
USERS = dict(algorithm='mine:make')


@pytest.mark.parametrize('flags, changes, is_shared', [
    ({}, dict(partition='iid', beta=.1), True),
    ({}, dict(local_epochs=1), False),  # freeze_once
    (dict(local_epochs=1), dict(local_epochs=2), False),
    ({}, dict(client_eval_every=1), False),  # keep_models
    (dict(client_eval_every=1), dict(client_eval_every=5), True),
    ({}, SERVER, False),  # the state of a server optimizer
    ({}, dict(server_learning_rate=.5), False),
    ({}, dict(proximal_mu=.1), False),  # the proximal term
    (dict(proximal_mu=.1), dict(proximal_mu=.2), True),
    (SERVER, dict(server_momentum=.0, server_learning_rate=.5), True),
    (dict(server_optimizer='adam'), dict(server_learning_rate=.1), True),
    # The noise on the inputs belongs to the examples of a split.
    ({}, NOISY, False),
    (NOISY, dict(seed=1), False),
    (NOISY, dict(partition_seed=3), False),
    (NOISY | dict(partition_seed=3), dict(seed=1), True),
    (NOISY, dict(noise_std=.2), False),
    (NOISY, dict(client_test_fraction=.2, client_eval_every=1), False),
    (NOISY, dict(mu=.5, dropout_rate=.1), True),
    # So do changed labels.
    ({}, LABELS, False), ({}, SHIFT, False),
    (LABELS, dict(label_noise=.2), False),
    (LABELS, dict(label_noise_form='localized'), False),
    (LABELS, dict(seed=1), False), (LABELS, dict(beta=.1), False),
    (LABELS, dict(validation_fraction=.1), False),
    (SHIFT, dict(concept_shift=3), False), (SHIFT, dict(seed=1), False),
    (SHIFT | dict(partition_seed=0), dict(seed=1, mu=.5), True),
    # Without noise its form plays no part.
    ({}, dict(label_noise_form='localized'), True),
    # Clients of these splits may share examples: freeze_once.
    ({}, dict(partition='mine:split'), False),
    (dict(partition='mine:split'), dict(seed=1), False),
    ({}, dict(partition_file='a.npz'), False),
    (dict(partition_file='a.npz'), dict(partition_file='b.npz'), False),
    (dict(partition_file='a.npz'), dict(seed=1), True),
    # The noise of differential privacy.
    (PRIVATE, dict(seed=1), False), (PRIVATE, dict(participation=.5), False),
    (PRIVATE, dict(cohorts_file='x'), False),
    (PRIVATE, dict(dp_delta=1e-6, learning_rate=.1, beta=.1), True),
    (dict(algorithm='fedavg'), dict(participation=.5), True),
    # `agreement` compares what the factory returns.
    (USERS, dict(mu=.5), True), (USERS, dict(seed=1, participation=.5), True),
    (USERS, dict(algorithm_args='alpha=1'), False),
])
def test_what_must_agree(flags, changes, is_shared):
  config = Config(**flags)
  other = dataclasses.replace(config, **changes)
  assert (program_key(config) == program_key(other)) == is_shared


def test_numbers_of_another_type_are_the_same():
  assert program_key(Config(dp_clip=1)) == program_key(Config(dp_clip=1.))
