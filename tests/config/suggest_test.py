"""Names that do not exist are answered with those that are meant."""

import dataclasses
import re
import shlex

import pytest

import moon_jax as mj
from moon_jax.cli import command_line
from moon_jax.config import (
  Config,
  DATASETS,
  FACTS,
  KINDS,
  LOGGERS,
  PARTS,
  parts,
  spelling,
  suggest,
)
from moon_jax.errors import UserError

pytestmark = pytest.mark.usefixtures('of_command')

_FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def choices(name):
  return [*KINDS[name].functions] if name in PARTS else (
      DATASETS if name == 'dataset' else FACTS[name]['choices'])


def arguments(kind):
  """Returns the arguments of all functions of a kind."""
  return {name for function in KINDS[kind].functions
          for name in parts.schema(kind, function)}


@pytest.mark.parametrize('name, flag', [
    ('lr', 'learning_rate'), ('rounds', 'rounds'),
    ('num-rounds', 'num_rounds'), ('numRounds', 'num_rounds'),
    ('num_round', 'num_rounds'), ('epochs', 'local_epochs'),
    ('num_epochs', 'local_epochs'), ('clients', 'num_clients'),
    ('alpha', 'partition.beta'), ('n_parties', 'num_clients'),
    ('optim', 'optimizer'), ('mu', 'algorithm.mu'),
    ('dataset-dir', 'data_dir'), ('output_dir', 'workdir'),
    ('weight-decay', 'optimizer.weight_decay'),
    ('server_lr', 'server.learning_rate'),
    ('num_negatives', 'algorithm.num_negatives'),
    ('byzantine', 'aggregation.byzantine'), ('eta', 'algorithm.eta'),
    ('buffer_size', 'rounds.buffer_size'),
    ('num_models', 'algorithm.num_models'),
    ('model_buffer_sise', 'algorithm.num_negatives'), ('muu', 'algorithm.mu'),
    ('partition_beta', 'partition.beta'), ('algorithm_mu', 'algorithm.mu'),
    ('server_momentum', 'server.momentum'),
    ('momentun', 'optimizer.momentum'), ('xyz', ''), ('gpu', ''),
])
def test_flags_that_are_meant(name, flag):
  assert suggest.flag(name, _FIELDS) == flag


def test_a_flag_that_the_command_lacks_is_not_suggested():
  assert suggest.flag('lr', ['grid', 'sweep']) == ''
  assert suggest.flag('mu', ['grid', 'sweep']) == ''


@pytest.mark.parametrize('word, meant', [
    ('--mu=5', '--algorithm.mu=5'), ('--alpha=0.1', '--partition.beta=0.1'),
    ('--beta', '--partition.beta'), ('--lr=0.1', '--learning_rate=0.1'),
    ('--weight_decay=1e-5', '--optimizer.weight_decay=1e-5'),
    ('--server_optimizer=adam', '--server=adam')])
def test_a_flag_that_is_an_argument_is_answered_with_it(word, meant):
  """The answer is a command that can be given."""
  with pytest.raises(UserError) as error:
    Config(**command_line.settings_of([word]))
  assert f'. Did you mean {meant}' in str(error.value)
  if '=' in meant:
    _, _, answer = str(error.value).partition('Did you mean ')
    Config(**command_line.settings_of(shlex.split(answer.removesuffix('?'))))


@pytest.mark.parametrize('make, name, hint', [
    (mj.Config, 'mu', "algorithm='NAME(mu=...)'"),
    (mj.Config, 'lr', 'learning_rate'),
    (mj.Federation, 'momentum', "optimizer='NAME(momentum=...)'"),
    (mj.Federation, 'mu', 'mu of algorithm'),
    (mj.partition.dirichlet, 'alpha', 'beta')])
def test_arguments_in_python_that_are_meant(make, name, hint):
  with pytest.raises(TypeError) as error:
    make(**{name: 1})
  assert str(error.value).endswith(f"'{name}'. Did you mean {hint}?")


@pytest.mark.parametrize('name, hint', [
    ('num_clients', 'There are as many as clients'),
    ('num_rounds', r'moon_jax.Simulation\(federation\).rounds'),
    ('partition', r'Give clients=moon_jax.partition')])
def test_settings_of_runs_that_a_federation_does_not_have(name, hint):
  with pytest.raises(TypeError, match=f"no argument '{name}'. {hint}"):
    mj.Federation(**{name: 1})


def test_synonyms_name_flags_and_are_none():
  for name, meant in suggest.FLAGS.items():
    kind, dot, argument = meant.partition('.')
    assert kind in {*PARTS, *_FIELDS, 'flagfile'}
    assert argument in arguments(kind) if dot else not argument, meant
    assert suggest.near(name, [*_FIELDS, 'flagfile']) != meant, (
        f'{name} is found without an entry')
  assert not {*suggest.FLAGS} & {*_FIELDS, *suggest.ADVICE}
  assert not {*suggest.ADVICE} & {*_FIELDS}
  assert all(re.fullmatch('[a-z0-9_]+', name) for name in suggest.FLAGS)
  for advice in suggest.ADVICE.values():
    assert {*re.findall(r'--(\w+)', advice())} <= {*_FIELDS}


@pytest.mark.parametrize('logger', LOGGERS)
def test_switches_of_loggers_are_answered_with_loggers(logger):
  assert suggest.advice(logger) == f'give --loggers={logger}'


def test_synonyms_of_values_are_valid_values():
  for name, values in spelling.VALUES.items():
    for word, meant in values.items():
      assert re.fullmatch('[a-z0-9]+', word)
      words = [f'--{word}' for word in shlex.split(meant)] if (
          '=' in meant) else [f'--{name}={meant}']
      config = Config(**command_line.settings_of(words))
      for kind in PARTS:
        parts.function_of(kind, getattr(config, kind))
      suggest.check_names('dataset', config.dataset, DATASETS, 'MODULE:LOADER')
      assert word not in map(spelling.letters, choices(name))


@pytest.mark.parametrize('flag, given, hint', [
    ('algorithm', 'FedAvg', '--algorithm=fedavg?'),
    ('algorithm', 'scafold', '--algorithm=scaffold?'),
    ('algorithm', 'FedAvgM',
     "--algorithm=fedavg --server='sgd(momentum=0.9)'?"),
    ('dataset', 'cifar-10', '--dataset=cifar10?'),
    ('dataset', 'CIFAR10', '--dataset=cifar10?'),
    ('dataset', 'Tiny-ImageNet', '--dataset=tiny_imagenet?'),
    ('dataset', 'cifar', '--dataset=cifar10 or --dataset=cifar100?'),
    ('model', 'resnet-50', '--model=resnet50?'),
    ('model', 'ResNet', '--model=resnet18 or --model=resnet50?'),
    ('partition', 'non-iid', '--partition=dirichlet?'),
    ('partition', 'noniid', '--partition=dirichlet?'),
    ('partition', 'dir', '--partition=dirichlet?'),
    ('optimizer', 'SGD', '--optimizer=sgd?'),
    ('weighting', 'equal', '--weighting=uniform?'),
    ('topology', 'HypCluster', '--topology=ifca?'),
])
def test_values_that_are_meant(flag, given, hint):
  assert spelling.remedy(flag, given, choices(flag)) == f'Did you mean {hint}'


@pytest.mark.parametrize('flag, given', [
    ('partition', 'xyz'), ('algorithm', ''), ('model', 'unet'),
    ('weighting', '-')])
def test_other_values_have_no_suggestion(flag, given):
  assert spelling.remedy(flag, given, choices(flag)) == ''


@pytest.mark.parametrize('given, hint', [
    ('mine.split', '. Did you mean --partition=mine:split?'),
    ('a.mine.split', '. Did you mean --partition=a.mine:split?'),
    ('partition.npz', ''), ('runs.data.csv', ''), ('mine.', ''), ('0.1', ''),
    ('v2.5', ''), ('1e3.mine', '')])
def test_a_module_and_a_function_have_a_colon_and_files_do_not(given, hint):
  with pytest.raises(UserError) as error:
    Config(partition=given)
  _, found, rest = str(error.value).partition('. Did you mean')
  assert found + rest == hint


def test_names_are_checked():
  for valid in (*DATASETS, 'package.module:function'):
    suggest.check_names('dataset', valid, DATASETS, 'MODULE:LOADER')
  with pytest.raises(UserError, match='^--dataset must be one of .*got'):
    suggest.check_names('dataset', 'DIGITS', DATASETS, 'MODULE:LOADER')


@pytest.mark.parametrize('kind', PARTS)
def test_names_of_functions_are_checked(kind):
  first = [*KINDS[kind].functions][0].upper()
  with pytest.raises(UserError, match=rf'^--{kind} must be one of .*got .*\?'):
    parts.normal(kind, parts.Part(first))
