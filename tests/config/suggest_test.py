"""Names that do not exist are answered with those that are meant."""

import dataclasses
import re
import shlex

import pytest

from moon_jax.config import Config, FACTS, limits, LOGGERS, suggest
from moon_jax.errors import UserError

_FIELDS = {field.name: field for field in dataclasses.fields(Config)}
_NAMED = [name for name, facts in FACTS.items() if facts['names']]


def choices(name):
  return FACTS[name]['names'] or FACTS[name]['choices']


@pytest.mark.parametrize('name, flag', [
    ('lr', 'learning_rate'), ('rounds', 'num_rounds'),
    ('num-rounds', 'num_rounds'), ('numRounds', 'num_rounds'),
    ('num_round', 'num_rounds'), ('epochs', 'local_epochs'),
    ('num_epochs', 'local_epochs'), ('clients', 'num_clients'),
    ('alpha', 'beta'), ('dirichlet_alpha', 'beta'), ('optim', 'optimizer'),
    ('dataset-dir', 'data_dir'), ('output_dir', 'workdir'),
    ('momentun', 'momentum'), ('weight-decay', 'weight_decay'),
    ('num_negative', 'num_negatives'), ('xyz', ''), ('gpu', ''),
])
def test_flags_that_are_meant(name, flag):
  assert suggest.flag(name, _FIELDS) == flag


def test_a_flag_that_the_command_lacks_is_not_suggested():
  assert suggest.flag('lr', ['grid', 'sweep']) == ''


def test_synonyms_name_flags_and_are_none():
  assert {*suggest.FLAGS.values()} <= {*_FIELDS, 'flagfile'}
  assert not {*suggest.FLAGS} & {*_FIELDS, *suggest.ADVICE}
  assert not {*suggest.ADVICE} & {*_FIELDS}
  listed = [name for facts in FACTS.values()
            for name in facts['synonyms'].split()]
  assert len(listed) == len(set(listed))  # one meaning each
  assert all(re.fullmatch('[a-z0-9_]+', name) for name in suggest.FLAGS)
  for text in suggest.ADVICE.values():
    assert {*re.findall(r'--(\w+)', text)} <= {*_FIELDS}


@pytest.mark.parametrize('logger', LOGGERS)
def test_switches_of_loggers_are_answered_with_loggers(logger):
  assert suggest.advice(logger) == f'give --loggers={logger}'


def test_synonyms_of_values_are_valid_values():
  for name, values in suggest.VALUES.items():
    for word, meant in values.items():
      assert re.fullmatch('[a-z0-9]+', word)
      words = shlex.split(meant if '--' in meant else f'--{name}={meant}')
      given = dict(word.removeprefix('--').split('=') for word in words)
      given = {flag: type(_FIELDS[flag].default)(value)
               for flag, value in given.items()}
      limits.check(Config(**given))
      for flag in given.keys() & {*_NAMED}:
        suggest.check_names(flag, given[flag])
      assert word not in map(suggest._letters, choices(name))


@pytest.mark.parametrize('flag, given, hint', [
    ('algorithm', 'FedAvg', '--algorithm=fedavg?'),
    ('algorithm', 'scafold', '--algorithm=scaffold?'),
    ('algorithm', 'FedAvgM', '--algorithm=fedavg --server_momentum=0.9?'),
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
    ('norm', 'bn', '--norm=batch?'),
])
def test_values_that_are_meant(flag, given, hint):
  assert suggest.value(flag, given, choices(flag)) == f'; did you mean {hint}'


@pytest.mark.parametrize('flag, given', [
    ('partition', 'xyz'), ('algorithm', ''), ('model', 'vit'), ('norm', '-')])
def test_other_values_have_no_suggestion(flag, given):
  assert suggest.value(flag, given, choices(flag)) == ''


@pytest.mark.parametrize('name', _NAMED)
def test_names_are_checked(name):
  for valid in (*FACTS[name]['names'], 'package.module:function'):
    suggest.check_names(name, valid)
  with pytest.raises(UserError, match=f'^--{name} must be one of .*got'):
    suggest.check_names(name, FACTS[name]['names'][0].upper())
