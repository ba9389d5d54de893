"""Each setting of a configuration reaches the federation or the run.

A setting that is lost between `Config` and what it is for leaves a federation
like that of its default. So for each setting a federation with another value
must differ somewhere other than in `Federation.config`.
"""

import dataclasses
import functools
import hashlib
import itertools
import pathlib
import types

import jax
import numpy as np
import pytest

from moon_jax.config import Config, kinds, Part, parts
from moon_jax.data import sources
from moon_jax.simulation import build

BASE = Config(dataset='breast_cancer', model='mlp', algorithm='fedavg',
              num_clients=4, num_rounds=6, local_epochs=2, batch_size=16)

# The run reads these, beside its federation; their own tests are named.
OF_THE_RUN = {
    'data_dir': 'data', 'partition.file': 'data/split_test.py',
    'partition.flower': 'data/partition_test.py',
    'cohort.file': 'data/cohort_test.py', 'clock.file': 'data/clock_test.py',
    'clock.availability_file': 'data/clock_test.py',
    'init_from': 'runs/saved_models_test.py',
    'early_stopping': 'runs/selection_test.py',
    'early_stopping_after': 'runs/selection_test.py',
    'eval_every': 'runs/summary_test.py', 'workdir': 'runs',
    'keep_best': 'runs/selection_test.py',
    'checkpoint_every': 'runs/run_test.py',
    'checkpoint_keep': 'runs/checkpoint_test.py',
    'loggers': 'runs/run_loggers_test.py',
    'privacy.delta': 'algorithms/privacy_test.py'}

# For each other plain setting those with which it has an effect, and a value
# that is not its default.
CASES = {
    'dataset': ({}, 'digits'),
    'train_examples': ({}, 200),
    'validation_fraction': ({}, .2),
    'num_clients': ({}, 5),
    'partition_seed': ({}, 3),
    'client_test_fraction': ({'client_eval_every': 1}, .2),
    'participation': ({}, .5),
    'weighting': ({}, 'uniform'),
    'local_epochs': ({}, 3),
    'local_steps': ({}, 3),
    'batch_size': ({}, 8),
    'last_batch': ({}, 'keep'),
    'shuffle': ({}, False),
    'augment': ({}, False),
    'learning_rate': ({}, .3),
    'gradient_clip': ({}, .3),
    'num_rounds': ({'schedule': 'cosine'}, 7),
    'seed': ({'partition_seed': 3}, 1),
    'on_nan': ({}, 'skip_client'),
    'eval_examples': ({}, 20),
    'eval_on': ({}, 'train'),
    'client_eval_every': ({}, 2),
    'client_eval': ({'client_eval_every': 1, 'client_test_fraction': .2},
                    'all'),
    'new_clients': ({'client_eval_every': 1, 'client_eval': 'all',
                     'client_test_fraction': .2}, .5),
    'metrics': ({}, 'f1'),
    'save_local_models': ({}, True),
    'client_state': ({}, 'disk'),
    'lanes': ({}, 2),
    'shard_data': ({}, True),
    'debug': ({}, True)}

# For each part calls that all differ, and settings with which they do. The
# first call of a function has its defaults; the others each change an argument.
_DIGITS = {'dataset': 'digits'}
_CLOCK = {'clock': 'lognormal', 'participation': .5}
_LATE = {'clock': 'lognormal', 'num_rounds': 60}
_UNIFORM = {'weighting': 'uniform'}
PARTS = {
    'labels': [({}, (
        'clean', 'noise', 'noise(rate=0.3)', 'noise(form=localized)', 'shift',
        'shift(noise_rate=0.2)', 'shift(noise_rate=0.2, noise_form=localized)'
        )), (_DIGITS, ('shift', 'shift(groups=3)'))],
    'partition': [({}, (
        'iid', 'dirichlet', 'dirichlet(beta=5)', 'shards',
        'shards(shards_per_client=3)', 'quantity', 'quantity(beta=5)',
        'client_dirichlet', 'client_dirichlet(beta=5)', 'temporal',
        'feature_noise', 'feature_noise(noise_std=0.3)')),
        (_DIGITS, (
            'iid', 'rotated', 'rotated(groups=2)',
            'pathological(classes_per_client=3)',
            'pathological(classes_per_client=5)',
            'extended_dirichlet(classes_per_client=5)',
            'extended_dirichlet(classes_per_client=6)',
            'extended_dirichlet(classes_per_client=6, beta=5)'))],
    'augmentation': [(_DIGITS, (
        'usual', 'cutout', 'cutout(length=4)', 'randaugment',
        'randaugment(n=1)', 'randaugment(m=5)', 'mixup', 'mixup(alpha=0.3)'))],
    'cohort': [({'participation': .5}, (
        'uniform', 'power_of_choice', 'power_of_choice(candidates=3)', 'oort',
        'oort(exploration=0.5)', 'oort(decay=0.5)',
        'oort(least_exploration=0.5)', 'oort(cutoff=0.5)',
        'oort(preferred=0.5)', 'oort(penalty=1)'))],
    'model': [(_DIGITS | {'algorithm': 'moon'}, (
        'mlp', 'mlp(projection_dim=None)', 'mlp(projection_dim=7)',
        'simple_cnn', 'simple_cnn(dtype=bfloat16)',
        'simple_cnn(precision=tf32)', 'resnet18', 'resnet18(norm=group)',
        'resnet18(convolution=native)', 'resnet50'))],
    'algorithm': [({}, (
        'fedavg', 'fedprox', 'fedprox(mu=3)', 'moon', 'moon(mu=3)',
        'moon(temperature=0.2)', 'moon(num_negatives=3)',
        'moon(num_negatives=3, pool=released)', 'moon(first_negative=random)',
        'moon(proximal_mu=0.1)', 'moon_l2', 'moon_l2(mu=3)', 'fednova',
        'fednova(proximal_mu=0.1)', 'fedntd', 'fedntd(tau=2)')),
        ({'optimizer': 'sgd(momentum=0)'}, (
            'scaffold', 'scaffold(form=niid_bench)',
            'scaffold(proximal_mu=0.1)'))],
    'aggregation': [({'num_clients': 5}, (
        'average', 'median', 'trimmed_mean', 'trimmed_mean(byzantine=2)',
        'fednova')),
        ({'optimizer': 'sgd(momentum=0)'}, (
            'scaffold', 'scaffold(form=niid_bench)'))],
    'topology': [({'num_clients': 6}, (
        'star', 'ifca(clusters=2)', 'ifca(clusters=3)',
        'ifca(clusters=2, head=out)', 'ifca(clusters=2, start=kmeans)',
        'cfl(clusters=2)', 'cfl(clusters=3)',
        'cfl(clusters=2, eps1=0.3)', 'cfl(clusters=2, eps2=0.3)',
        'cfl(clusters=2, gamma=0.3)',
        'hierarchical(edges=2)', 'hierarchical(edges=3)',
        'hierarchical(edges=2, period=2)', 'gossip', 'gossip(graph=complete)',
        'gossip(graph=erdos_renyi(probability=0.7))', 'gossip(steps=2)',
        'gossip(order=mix_train)', 'gossip(graph=regular(degree=4))',
        'epidemic', 'epidemic(peers=3)',
        'epidemic(peers=3, oracle=True)'))],
    'server': [({}, (
        'sgd', 'sgd(learning_rate=0.5)', 'sgd(momentum=0.5)',
        'sgd(momentum=0.5, form=ema)', 'adam', 'adam(learning_rate=0.1)',
        'adam(b1=0.5)', 'adam(b2=0.5)', 'adam(eps=0.1)', 'yogi', 'adagrad',
        'adagrad(eps=0.1)'))],
    'attack': [({'num_clients': 5}, (
        'none', 'sign_flip', 'sign_flip(scale=3)', 'sign_flip(attackers=0.4)',
        'scaling', 'label_flip', 'label_flip(attackers=0.4)'))],
    'compress': [({}, (
        'none', 'qsgd', 'top_k', 'top_k(fraction=0.2)', 'top_k(download=True)',
        'top_k(has_feedback=False)'))],
    'clock': [({'participation': .5}, (
        'none', 'lognormal', 'lognormal(spread=0.2)',
        'lognormal(availability=0.9)'))],
    'rounds': [({}, (
        'synchronous', 'synchronous(dropout_rate=0.2)',
        'synchronous(dropout_rate=0.2, dropout_stage=after_training)')),
        (_CLOCK, (
            'synchronous', 'synchronous(over_selection=1.5)',
            'synchronous(deadline=1)',
            'synchronous(deadline=1, partial_work=True)',
            'synchronous(tiers=2)')),
        (_LATE, tuple(f'{call[:-1]}{rest})' for call, rest in (
            ('fedbuff(concurrency=3, buffer_size=2)', ''),
            ('fedasync(concurrency=3, buffer_size=2)', ''),
            ('fedbuff(concurrency=4, buffer_size=2)', ''),
            ('fedbuff(concurrency=3, buffer_size=1)', ''),
            ('fedbuff(concurrency=3, buffer_size=2)', ', staleness=constant'),
            ('fedbuff(concurrency=3, buffer_size=2)',
             ', staleness=polynomial(exponent=2)'),
            ('fedbuff(concurrency=3, buffer_size=2)', ', max_staleness=0'),
            ('fedasync(concurrency=4, buffer_size=2)', ''),
            ('fedasync(concurrency=3, buffer_size=1)', ''),
            ('fedasync(concurrency=3, buffer_size=2)', ', staleness=constant'),
            ('fedasync(concurrency=3, buffer_size=2)', ', max_staleness=0'))))],
    'optimizer': [({}, (
        'sgd', 'sgd(momentum=0.3)', 'sgd(weight_decay=0.3)', 'adam',
        'adam(weight_decay=0.3)', 'amsgrad', 'adamw',
        'adamw(weight_decay=0.3)', 'adamw(b1=0.3)', 'lion'))],
    'schedule': [({}, (
        'constant', 'constant(warmup=2)', 'cosine', 'cosine(warmup=2)',
        'step(every=2)', 'step(every=2, decay=0.3)', 'step(every=3)',
        'step(every=2, warmup=2)'))],
    'privacy': [(_UNIFORM, (
        'none', 'client(clip=1)', 'client(clip=1, noise_multiplier=0.7)',
        'client(clip=1, noise_multiplier=0.7, noise_by=clients)',
        'client(clip=2, noise_multiplier=0.7)',
        'client(clip=1, noise_multiplier=0.3)',
        'client(clip=1, noise_multiplier=0.3, quantile=0.5)',
        'client(clip=1, noise_multiplier=0.3, quantile=0.8)',
        'example(clip=1)', 'example(clip=1, noise_multiplier=0.7)',
        'example(clip=2)', 'client(clip=1, epsilon=8)',
        'example(clip=1, epsilon=8)'))]}

load = functools.cache(sources.load_dataset)


def named(code):
  """Returns the names of attributes and globals that code reads."""
  return sorted({*code.co_names, *(
      name for part in code.co_consts if isinstance(part, types.CodeType)
      for name in named(part))})


def contents_of(cell):
  """Returns what a function closes over, or None before it is assigned."""
  try:
    return cell.cell_contents
  except ValueError:
    return None


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
    closed = [contents_of(cell) for cell in x.__closure__ or ()]
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
  if isinstance(x, Part):
    return str(x)
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
  federation = dataclasses.replace(  # what is made, not what it is called
      federation, model=federation.model._replace(source=''),
      algorithm=federation.algorithm._replace(source=''))
  rates = [federation.hparams(t)['learning_rate'] for t in range(6)]
  return {field.name: described(getattr(federation, field.name))
          for field in dataclasses.fields(federation)
          if field.name != 'learning_rate'} | {
              'learning_rate': rates}


def test_each_setting_is_listed():
  """And of built-in parts without a module of its own, each argument."""
  tests = pathlib.Path(__file__).parents[1]
  assert all((tests / path).exists() for path in OF_THE_RUN.values())
  named = {name for name in OF_THE_RUN if '.' not in name}
  assert not named & {*CASES, *PARTS}
  assert {*CASES, *PARTS, *named} == {
      field.name for field in dataclasses.fields(Config)}
  # Arguments of all methods, rules, attacks and compressors are too many.
  for kind in {*PARTS} - {'algorithm', 'aggregation', 'attack', 'compress',
                          'optimizer', 'model', 'clock'}:
    calls = [Config(**{kind: call})
             for _, listed in PARTS[kind] for call in listed]
    given = {(getattr(call, kind).name, name) for call in calls
             for name, _ in getattr(call, kind).arguments}
    assert {(name, argument) for name in kinds.KINDS[kind].functions
            for argument in parts.schema(kind, name)
            if not {f'{kind}.{name}', f'{kind}.{argument}'} & {*OF_THE_RUN}
            and name not in ('yogi', 'adagrad')} <= given, kind


@pytest.mark.parametrize('name', CASES)
def test_each_setting_reaches_the_federation(name):
  others, value = CASES[name]
  usual = content(**others)
  assert content(**others) is usual
  changed = content(**others | {name: value})
  assert [field for field in usual if changed[field] != usual[field]]


@pytest.mark.parametrize('kind', PARTS)
def test_each_argument_reaches_the_federation(kind):
  for others, calls in PARTS[kind]:
    found = [content(**others | {kind: call}) for call in calls]
    for (one, first), (other, second) in itertools.combinations(
        zip(calls, found), 2):
      assert first != second, (one, other)


@pytest.mark.parametrize('changes, fields', [
    ({'participation': .5}, ['rounds']),
    # Speeds are equal, so that only draws of clients differ.
    (_CLOCK | {'clock': 'lognormal(spread=0, availability=0.9)'}, ['rounds']),
    (_LATE | {'clock': 'lognormal(spread=0)',
              'rounds': 'fedbuff(concurrency=3, buffer_size=2)'},
     ['rounds'])])
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
    ({'client_test_fraction': .2, 'client_eval_every': 1, 'new_clients': .5,
      'client_eval': 'all'}, ['new_clients']),
    ({'labels': 'noise', 'partition': 'iid'}, ['data']),
    ({'labels': 'shift', 'dataset': 'digits'}, ['data']),
    ({'partition': 'rotated', 'dataset': 'digits'}, ['data']),
    (_CLOCK | {'cohort': 'oort', 'partition': 'iid'}, ['rounds']),
    ({'topology': 'gossip(graph=erdos_renyi(probability=0.7))',
      'num_clients': 12}, ['topology']),
    ({'attack': 'sign_flip', 'num_clients': 12,
      'partition': 'dirichlet(beta=5)'}, ['algorithm'])])
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
