"""What is known of the built-in methods, and the arguments of all parts."""

import inspect
import re

import pytest

import moon_jax as mj
from moon_jax.config import Config, KINDS, Part, parts
from moon_jax.data import attackers
from moon_jax.methods import registry


def test_methods_that_read_the_number_of_rounds():
  """A finished run of fewer rounds is not the beginning of theirs."""
  assert {name for name, method in registry.METHODS.items()
          if method.reads_num_rounds} == {
      name for name in registry.METHODS
      if "hparams['num_rounds']" in inspect.getsource(inspect.getmodule(
          inspect.unwrap(parts.function_of('algorithm', Part(name)))))}


@pytest.mark.parametrize('name, traffic', {
    'fedavg': (False, True, False), 'moon': (True, True, False),
    'scaffold': (True, False, True), 'solo': (True, False, False),
    'fedbn': (True, False, False), 'fedbabu': (False, False, False),
    'ditto': (True, True, False), 'pfedme': (False, True, False),
    'fedamp': (True, False, True), 'fedkd': (True, True, True),
    'fedgkd': (False, True, True), 'fedexp': (False, False, False),
    # Trees like a model that are no model.
    'fedadmm': (True, False, False), 'fedspeed': (True, False, False)}.items())
def test_what_methods_keep_and_send_is_traced(name, traffic):
  """Privacy accounting and checks of configurations rely on it."""
  assert registry.traffic(name) == traffic


@pytest.mark.parametrize('flags, keeps, sends_only, needs', [
    (dict(aggregation='fednova'), True, False, {'optimizer': 'sgd'}),
    (dict(algorithm='fedavg'), False, True, {}),
    (dict(algorithm='fedavg', aggregation='scaffold'), True, False,
     {'num_clients': 10, 'optimizer': 'sgd', 'momentum': 0}),
    (dict(algorithm='scaffold(form=niid_bench)'), True, False,
     {'num_clients': 10, 'optimizer': 'sgd'})])
def test_properties_of_methods_with_their_aggregation(
    flags, keeps, sends_only, needs):
  config = Config(**flags)
  assert registry.keeps_client_state(config) == keeps
  assert registry.sends_only_model(config) == sends_only
  assert registry.combined(config).needs == needs


@pytest.mark.parametrize('algorithm, hparams', [
    ('moon', {'mu': 5., 'temperature': .5}), ('moon_l2', {'mu': 5.}),
    ('fedprox', {'mu': .01}), ('fedavg', {}), ('solo', {}),
    ('moon(mu=0.3, temperature=0.2)', {'mu': .3, 'temperature': .2}),
    ('moon(mu=1, proximal_mu=0.1)',
     {'mu': 1., 'temperature': .5, 'proximal_mu': .1})])
def test_hyperparameters_are_arguments_or_their_defaults(algorithm, hparams):
  made = registry.make(Config(algorithm=algorithm)).hparams
  assert {name: made.get(name) for name in hparams} == hparams
  assert {'mu', 'temperature', 'proximal_mu'} & made.keys() == hparams.keys()


@pytest.mark.parametrize('kind', KINDS)
def test_built_in_functions_have_a_schema_and_help(kind):
  """Each argument has a type that is checked, a default or is required, and a
  text in `moon-jax train --help KIND.NAME`.
  """
  for name in KINDS[kind].functions:
    summary, entries = parts.describe(kind, name)
    assert summary, name
    assert not [entry.name for entry in entries if not entry.help], name
    for entry, parameter in zip(entries, parts.schema(kind, name).values()):
      assert parameter.kind is not object or parameter.choices or (
          KINDS[kind].functions[name].startswith('optax')), (name, entry)


def factory_of(name):
  """Returns the function that makes the method, from its module."""
  return inspect.unwrap(parts.function_of('algorithm', Part(name)))


def numbers_and_words():
  """Yields numbers and words that methods take: method, name, default."""
  for name in registry.METHODS:
    for argument, parameter in parts.parameters(factory_of(name)).items():
      if parameter.is_argument and argument not in ('head', 'layers') and (
          type(parameter.default) in (int, float, str)):
        yield name, argument, parameter.default


# Negative numbers with a meaning: a shift of weights, and a cosine.
NEGATIVE = {('feddisco', 'b'), ('fedrcl', 'threshold')}


@pytest.mark.parametrize('name, argument, usual', [*numbers_and_words()])
def test_arguments_of_methods_out_of_range_are_refused(name, argument, usual):
  """With the argument, what it must be, the value, and the default."""
  factory = factory_of(name)
  needed = {
      name: value for name, value in (('num_clients', 4), ('participation', 1))
      if name in inspect.signature(factory).parameters}
  text = inspect.getdoc(factory)
  wrong = ['nonsense'] if isinstance(usual, str) else [
      float('nan'), *([] if (name, argument) in NEGATIVE else [-1.])]
  if re.search(rf'\b{argument}: [^:]*\b0 to 1\b', text):
    wrong.append(1.5)
  if re.search(rf'\b{argument}: [^:]*(above 0|positive)', text):
    wrong.append(0.)
  factory(**needed, **{argument: usual})
  for value in wrong:
    with pytest.raises(mj.UserError, match=(
        rf'^{argument} must be .*; got {value!r}. The default is {argument}=')):
      parts.checked(factory)(**needed, **{argument: value})


def test_the_range_of_fedspeed_is_checked():
  with pytest.raises(mj.UserError, match='alpha must be at most 1; got 1.5'):
    mj.fedspeed(4, alpha=1.5)


def test_values_of_the_run_are_those_of_all_clients():
  """And not of those that a round samples."""
  config = Config(algorithm='scaffold', optimizer='sgd(momentum=0)',
                  num_clients=8, participation=.5)
  assert registry.make(config).needs['num_clients'] == 8


@pytest.mark.parametrize('changes, cohort_size, expected', [
    ({}, None, 1.), ({'participation': .25}, None, .2),  # rounded down
    ({'cohort': 'file(path=x)'}, 3, .3),
    ({'rounds': 'synchronous(dropout_rate=0.5)'}, 4, .2)])
def test_participation_is_that_of_the_cohorts_that_train(
    changes, cohort_size, expected):
  config = Config(algorithm='fedphp', num_clients=10, **changes)
  assert registry.make(config, cohort_size).hparams['participation'] == expected


@pytest.mark.parametrize('count, fraction, hostile', [
    (10, .25, 3), (10, .35, 4), (15, .2, 3), (10, .1, 1), (30, .1, 3)])
def test_the_server_assumes_the_hostile_clients_that_there_are(
    count, fraction, hostile):
  config = Config(
      algorithm='fedavg', num_clients=count,
      attack=f'sign_flip(attackers={fraction})', aggregation='trimmed_mean')
  assert len(attackers.configured(config)) == hostile
  least = registry.rule_of(config, count).min_received  # 2 f + 1
  assert least == 2 * hostile + 1
