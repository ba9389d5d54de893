"""Each setting of a configuration reaches the federation or the run.

A setting that is lost between `Config` and what it is for leaves a federation
like that of its default. So for each setting a federation with another value
must differ somewhere other than in `Federation.config`.
"""

import dataclasses
import functools
import hashlib
import pathlib
import types

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.simulation import build

BASE = Config(dataset='breast_cancer', model='mlp', algorithm='fedavg',
              num_clients=4, num_rounds=6, local_epochs=2, batch_size=16)

# The run reads these, beside its federation; their own tests are named.
OF_THE_RUN = {
    'data_dir': 'data', 'partition_file': 'data/split_test.py',
    'cohorts_file': 'data/cohort_test.py', 'clock_file': 'data/clock_test.py',
    'availability_file': 'data/clock_test.py',
    'init_from': 'rundir/export_test.py', 'model_args': 'models/user_test.py',
    'early_stopping': 'training/selection_test.py',
    'check_determinism': 'training/run_test.py',
    'eval_every': 'training/summary_test.py', 'workdir': 'rundir',
    'keep_best': 'training/selection_test.py',
    'checkpoint_every': 'training/run_test.py',
    'checkpoint_keep': 'rundir/checkpoint_test.py',
    'checkpoint_keep_every': 'rundir/checkpoint_test.py',
    'quiet': 'view', 'loggers': 'training/run_loggers_test.py',
    'dp_delta': 'algorithms/privacy_test.py'}

# For each other setting those with which it has an effect, and a value that is
# not its default.
_MOON = dict(algorithm='moon')
_CLOCK = dict(clock='lognormal', participation=.5)
_ASYNC = dict(clock='lognormal', asynchronous='fedbuff', concurrency=3,
              buffer_size=2, num_rounds=60)
_DP = dict(dp_clip=1., weighting='uniform')
_CNN = dict(dataset='digits', model='simple_cnn')
_RESNET = dict(dataset='digits', model='resnet18')
CASES = {
    'dataset': ({}, 'digits'),
    'train_examples': ({}, 200),
    'validation_fraction': ({}, .2),
    'label_noise': ({}, .3),
    'label_noise_form': ({'label_noise': .3}, 'localized'),
    'concept_shift': ({}, 2),
    'num_clients': ({}, 5),
    'partition': ({}, 'iid'),
    'beta': ({}, 5.),
    'shards_per_client': ({'partition': 'shards'}, 3),
    'noise_std': ({'partition': 'feature_noise'}, .3),
    'partition_seed': ({}, 3),
    'client_test_fraction': ({'client_eval_every': 1}, .2),
    'participation': ({}, .5),
    'cohort': ({'participation': .5}, 'power_of_choice'),
    'cohort_args': (
        {'participation': .5, 'cohort': 'power_of_choice'}, 'candidates=3'),
    'dropout_rate': ({}, .2),
    'dropout_stage': ({'dropout_rate': .2}, 'after_training'),
    'model': ({'dataset': 'digits'}, 'simple_cnn'),
    'norm': (_RESNET, 'group'),
    'projection_head': (_MOON, False),
    'projection_dim': (_MOON, 7),
    'algorithm': ({}, 'moon'),
    'algorithm_args': ({'algorithm': 'fedntd'}, 'tau=2'),
    'mu': (_MOON, 3.),
    'temperature': (_MOON, .2),
    'num_negatives': (_MOON, 3),
    'contrastive': (_MOON, 'l2'),
    'first_negative': (_MOON, 'random'),
    'negatives_pool': (_MOON | {'num_negatives': 3}, 'released'),
    'proximal_mu': (_MOON, .1),
    'scaffold_form': (
        {'algorithm': 'scaffold', 'momentum': 0.}, 'niid_bench'),
    'aggregation': ({}, 'median'),
    'aggregation_args': (
        {'aggregation': 'trimmed_mean', 'num_clients': 5}, 'byzantine=2'),
    'weighting': ({}, 'uniform'),
    'server_optimizer': ({'server_learning_rate': .1}, 'adam'),
    'server_learning_rate': ({}, .5),
    'server_momentum': ({}, .5),
    'server_momentum_form': ({'server_momentum': .5}, 'ema'),
    'attack': ({'num_clients': 5}, 'sign_flip'),
    'attack_args': ({'attack': 'sign_flip', 'attackers': .25}, 'scale=3'),
    'attackers': ({'attack': 'sign_flip', 'attackers': .25}, .5),
    'compress': ({}, 'qsgd'),
    'compress_fraction': ({'compress': 'top_k'}, .2),
    'compress_download': ({'compress': 'top_k'}, True),
    'compress_args': ({'compress': 'top_k'}, 'has_feedback=False'),
    'clock': ({}, 'lognormal'),
    'clock_args': (_CLOCK, 'spread=.2'),
    'over_selection': (_CLOCK, 1.5),
    'deadline': (_CLOCK, 1.),
    'tiers': (_CLOCK, 2),
    'partial_work': (_CLOCK | {'deadline': 1.}, True),
    'asynchronous': (_ASYNC, 'fedasync'),
    'concurrency': (_ASYNC, 4),
    'buffer_size': (_ASYNC, 1),
    'staleness': (_ASYNC, 'constant'),
    'staleness_args': (_ASYNC, 'exponent=2'),
    'max_staleness': (_ASYNC, 0),
    'local_epochs': ({}, 3),
    'local_steps': ({}, 3),
    'batch_size': ({}, 8),
    'last_batch': ({}, 'keep'),
    'shuffle': ({}, False),
    'augment': ({}, False),
    'augmentation_draws': ({}, 'recurring'),
    'optimizer': ({}, 'adam'),
    'learning_rate': ({}, .3),
    'learning_rate_schedule': ({}, 'cosine'),
    'learning_rate_decay': (
        {'learning_rate_schedule': 'step', 'decay_rounds': 2}, .3),
    'decay_rounds': (
        {'learning_rate_schedule': 'step', 'decay_rounds': 2}, 3),
    'warmup_rounds': ({}, 2),
    'momentum': ({}, .3),
    'weight_decay': ({}, .3),
    'gradient_clip': ({}, .3),
    'num_rounds': ({'learning_rate_schedule': 'cosine'}, 7),
    'seed': ({'partition_seed': 3}, 1),
    'on_nan': ({}, 'skip_client'),
    'eval_examples': ({}, 20),
    'eval_on': ({}, 'train'),
    'client_eval_every': ({}, 2),
    'metrics': ({}, 'f1'),
    'epoch_losses': ({}, True),
    'save_local_models': ({}, True),
    'client_state': ({}, 'disk'),
    'dp_clip': ({'weighting': 'uniform'}, 1.),
    'dp_unit': ({'dp_clip': 1., 'weighting': 'uniform'}, 'example'),
    'dp_noise_multiplier': (_DP, .7),
    'dp_noise_by': (_DP | {'dp_noise_multiplier': .7}, 'clients'),
    'dp_quantile': (_DP, .5),
    'lanes': ({}, 2),
    'shard_data': ({}, True),
    'convolution': (_RESNET, 'native'),
    'dtype': (_CNN, 'bfloat16'),
    'precision': (_CNN, 'tf32')}

load = functools.cache(sources.load)


def named(code):
  """Returns the names of attributes and globals that code reads."""
  return sorted({*code.co_names, *(
      name for part in code.co_consts if isinstance(part, types.CodeType)
      for name in named(part))})


def described(x, outer=()):
  """Returns plain values that are equal for two objects that compute the same.

  Of functions these are their names and all that they close over; of a
  configuration among that, the settings that they read.
  """
  if id(x) in outer:
    return 'itself'
  inner = functools.partial(described, outer=(*outer, id(x)))
  if isinstance(x, functools.partial):
    return [inner(part) for part in (x.func, x.args, x.keywords)]
  if isinstance(x, types.FunctionType):
    closed = [cell.cell_contents for cell in x.__closure__ or ()]
    return [x.__module__, x.__qualname__, inner(x.__defaults__),
            inner(x.__kwdefaults__), [
                [(name, getattr(value, name)) for name in named(x.__code__)
                 if hasattr(Config, name)]
                if isinstance(value, Config) else inner(value)
                for value in closed]]
  if isinstance(x, types.MethodType):
    return [inner(x.__func__), inner(x.__self__)]
  if isinstance(x, np.ndarray | np.generic | jax.Array):
    x = np.asarray(x)
    return [str(x.dtype), x.shape, hashlib.sha256(x.tobytes()).hexdigest()]
  if hasattr(x, 'items'):
    return [(name, inner(value)) for name, value in x.items()]
  if isinstance(x, tuple | list):
    return [type(x).__name__, *map(inner, x)]
  if dataclasses.is_dataclass(x) and not isinstance(x, type):
    return [type(x).__name__, *(
        (field.name, inner(getattr(x, field.name, None)))
        for field in dataclasses.fields(x)
        if field.name not in ('parent', 'name'))]
  if hasattr(x, '__wrapped__'):
    return inner(x.__wrapped__)
  if isinstance(x, bool | int | float | str | bytes | type | None | (
      types.BuiltinFunctionType)):
    return repr(x)
  return [type(x).__name__, inner(list(x))] if hasattr(
      x, '__len__') else repr(x).partition(' at 0x')[0]


@functools.cache
def content(**changes):
  """Returns all that a simulation reads of a federation, by field."""
  config = dataclasses.replace(BASE, **changes)
  federation = build.federation(config, load(config.dataset))
  rates = [federation.hparams(t)['learning_rate'] for t in range(6)]
  return {field.name: described(getattr(federation, field.name))
          for field in dataclasses.fields(federation)
          if field.name not in ('config', 'learning_rate')} | {
              'learning_rate': rates}


def test_each_setting_is_listed():
  assert not CASES.keys() & OF_THE_RUN.keys()
  tests = pathlib.Path(__file__).parents[1]
  assert all((tests / path).exists() for path in OF_THE_RUN.values())
  assert {*CASES, *OF_THE_RUN} == {
      field.name for field in dataclasses.fields(Config)}


@pytest.mark.parametrize('name', CASES)
def test_each_setting_reaches_the_federation(name):
  others, value = CASES[name]
  usual = content(**others)
  assert content(**others) is usual
  changed = content(**others | {name: value})
  assert [field for field in usual if changed[field] != usual[field]]


@pytest.mark.parametrize('changes, fields', [
    ({'participation': .5}, ['cohorts']),
    # Speeds are equal, so that only draws of clients differ.
    (_CLOCK | {'clock_args': 'spread=0,availability=.9'}, ['timeline']),
    (_ASYNC | {'clock_args': 'spread=0'}, ['timeline'])])
def test_the_seed_reaches_each_draw_of_a_run(changes, fields):
  """With one seed of the partition, whose draws stay."""
  one, other = (content(**changes, partition_seed=3, seed=seed)
                for seed in (4, 5))
  for field in fields:
    assert one[field] != other[field]
  for field in 'clients', 'data', 'algorithm':
    assert one[field] == other[field]


@pytest.mark.parametrize('changes, fields', [
    ({}, ['clients']), ({'validation_fraction': .2}, ['validation']),
    ({'client_test_fraction': .2, 'client_eval_every': 1}, ['client_tests']),
    ({'label_noise': .2, 'partition': 'iid'}, ['data']),
    ({'concept_shift': 2, 'dataset': 'digits'}, ['data']),
    (_CLOCK | {'cohort': 'oort', 'partition': 'iid'}, ['client_seconds']),
    ({'attack': 'sign_flip', 'num_clients': 12, 'beta': 5.}, ['algorithm'])])
def test_the_seed_of_the_partition_reaches_each_draw_of_a_split(
    changes, fields):
  one, other, run = (
      content(**changes, partition_seed=split, seed=seed)
      for split, seed in ((3, 4), (6, 4), (3, 5)))
  for field in fields:
    assert one[field] != other[field]
    assert one[field] == run[field]


def test_methods_know_the_number_of_rounds():
  federation = build.federation(BASE, load(BASE.dataset))
  assert federation.hparams()['num_rounds'] == BASE.num_rounds
