"""Your own parts: what they get of a run, and what they must return."""

import sys

import pytest

import moon_jax as mj
from moon_jax import learning_rates, optimizers
from moon_jax.config import Config, KINDS, parts
from moon_jax.data import augment
from moon_jax.errors import UserError
from moon_jax.simulation import agreement, build, checks

_CODE = """
import jax.numpy as jnp
import numpy as np
import optax
import moon_jax as mj

def nothing():
  pass

def text():
  return 'text'

def of_rate():
  return lambda learning_rate: learning_rate

def far_attack():
  return lambda updates, is_honest, is_hostile, keys: jnp.nope

def matrix_rule():
  return mj.robust.Rule(lambda rows, state, key: (rows.u_JD, state, {}))

def one_result_rule():
  return mj.robust.Rule(lambda rows, state, key: rows.u_JD.mean(0))

def failing_rule():
  return mj.robust.Rule(lambda rows, state, key: jnp.nope)

def falling(learning_rate: mj.FromRun):
  return lambda index: learning_rate - 0.02 * index

def ending():
  return lambda index: 0.1 if index < 1 else None

def failing_schedule():
  return lambda index: [0.1][index]

def not_a_rate():
  return float('nan')

def rising(learning_rate: mj.FromRun):
  return lambda index: learning_rate * [1, 2, 3][index]

def short_labels(labels: mj.FromRun):
  return labels[:-1]

def other_labels(labels: mj.FromRun):
  return labels + 1

def text_labels(labels: mj.FromRun):
  return labels.astype(str)

def short_clock():
  return mj.clock.Clock(*np.ones((3, 3)))

def early_clock():
  return mj.clock.Clock(-np.ones(4), np.ones(4), np.ones(4))

def endless_clock():
  return mj.clock.Clock(np.ones(4), np.full(4, np.nan), np.ones(4))

def listed_clock():
  return mj.clock.Clock([1] * 4, [2] * 4, [3] * 4)

def own_rate():
  return optax.sgd(0.1)

def short_attack():
  return lambda updates, is_honest, is_hostile, keys: updates[:, :3]

def no_attack():
  return lambda updates, is_honest, is_hostile, keys: None

def text_rule():
  return mj.robust.Rule(
      lambda rows, state, key: (rows.u_JD.mean(0), state, {'a': 'text'}))

def failing_init():
  return mj.robust.Rule(mj.robust.mean().apply, init=lambda update: jnp.nope)

def short_update():
  return mj.compress.Compressor(
      lambda update, params, key, hparams: update[:3], lambda *args: 8)

def failing_bits():
  return mj.compress.Compressor(
      lambda update, params, key, hparams: update, lambda *args: jnp.nope)

def failing_server():
  from moon_jax.algorithms.server import Server
  return Server(lambda hparams: optax.sgd(hparams['nope']))

def failing_rate():
  return lambda learning_rate: optax.nope(learning_rate)

def failing_mix():
  return mj.topologies.Topology(num_models=2, mix=lambda mixing: mixing.nope)

def other_mix():
  return mj.topologies.Topology(num_models=2, mix=lambda mixing: mixing.models)

def failing_weight():
  return lambda staleness: staleness.nope

def vector():
  return lambda staleness: jnp.ones(3)

def mixed_up():
  from moon_jax.data import augment
  return augment.mixup(2.)

def mean_rule():
  return mj.robust.mean()
"""

# What your own function of each kind returns, from the values of the run.
_RESULTS = {
    'partition': 'np.array_split(np.arange(num_examples), num_clients)',
    'labels': 'labels', 'model': 'mj.mlp(num_classes)',
    'algorithm': 'mj.fedavg()',
    'augmentation': 'lambda key, inputs: inputs + dataset.mean[0]',
    'aggregation': 'mj.robust.trimmed_mean(byzantine)',
    'schedule': 'learning_rate',
    'clock': 'mj.clock.lognormal(num_clients, seed)',
    'topology': 'mj.topologies.gossip(num_clients, seed)',
    'graph': 'np.array([[0, i] for i in range(1, num_nodes)])'}


@pytest.fixture
def own(tmp_path, monkeypatch):
  """Returns configurations whose parts are functions of `own_parts.py`."""
  names = {kind: ', '.join(f'{name}: mj.FromRun' for name in known.values)
           for kind, known in KINDS.items() if known.values}
  functions = [f'def {kind}({names[kind]}):\n  return {_RESULTS[kind]}\n'
               for kind in names]
  (tmp_path / 'own_parts.py').write_text('\n'.join([_CODE, *functions]))
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, 'own_parts', raising=False)

  def config(**settings):
    return Config(**{
        'dataset': 'digits', 'model': 'mlp', 'algorithm': 'fedavg',
        'num_clients': 4, 'train_examples': 200, 'batch_size': 16,
        **settings})

  return config


def test_own_functions_get_the_values_that_the_help_lists(own):
  kinds = [kind for kind, known in KINDS.items() if known.values]
  assert {*kinds} == {*_RESULTS}
  federation = build.federation(
      own(**{kind: f'own_parts:{kind}' for kind in kinds
            if kind not in ('graph', 'topology')}))
  assert [*map(len, federation.clients)] == [50] * 4
  for gossip in 'own_parts:topology', 'gossip(graph=own_parts:graph)':
    topology = build.federation(own(topology=gossip)).topology
    assert topology.num_models == 4
  assert topology.received.tolist() == [3, 1, 1, 1]  # of a star


@pytest.mark.parametrize('kind, function', [
    (kind, function) for kind, known in KINDS.items()
    if known.returns and kind != 'tune'  # of several runs
    for function in ['nothing', *['text'] * bool(known.result)]])
def test_own_functions_return_what_their_kind_needs(own, kind, function):
  """A function without `return` is no part that changes nothing."""
  settings = {kind: f'own_parts:{function}'}
  if kind == 'staleness':
    settings = {'clock': 'lognormal', 'rounds': (
        'fedbuff(concurrency=2, buffer_size=1, staleness=own_parts:'
        f'{function})')}
  if kind == 'graph':
    settings = {'topology': f'gossip(graph=own_parts:{function})'}
  with pytest.raises(UserError, match='must return') as error:
    build.federation(own(**settings))
  assert f'{kind}=own_parts:{function}' in str(error.value)


@pytest.mark.parametrize('kind', [
    kind for kind, known in KINDS.items()
    if not known.returns and kind != 'dataset'])
def test_kinds_without_functions_of_yours(own, kind):
  with pytest.raises(UserError, match=f'{kind} must be one of(?!.*MODULE)'):
    checks.validate(own(**{kind: 'own_parts:text'}))


@pytest.mark.parametrize('kind, function, words', [
    ('aggregation', 'matrix_rule', r'\[339426\].*own_parts.py, line 20'),
    ('aggregation', 'one_result_rule', 'three results.*got float32'),
    ('aggregation', 'failing_rule', 'failing_rule, which.*nope.*line 26'),
    ('aggregation', 'text_rule', 'metrics that are numbers'),
    ('aggregation', 'failing_init', 'failing_init, which failed.*nope'),
    ('attack', 'far_attack', 'far_attack, which failed.*nope'),
    ('attack', 'short_attack', r'; got float32\[1, 3\].*own_parts.py, line'),
    ('attack', 'no_attack', r'\[1, 339426\] or \[339426\]; got None'),
    ('compress', 'short_update', r'float32\[3\], expected float32\[339426\]'),
    ('server', 'failing_server', 'failing_server, which failed: KeyError'),
    ('staleness', 'failing_weight', 'failing_weight, which failed.*nope'),
    ('staleness', 'vector', r'the weight of an update, .*got float32\[3\]')])
def test_functions_that_a_check_calls(own, kind, function, words):
  settings = {kind: f'own_parts:{function}'}
  if kind == 'staleness':
    settings = {'clock': 'lognormal', 'rounds': (
        f'fedasync(concurrency=2, staleness=own_parts:{function})')}
  with pytest.raises(UserError, match=words):
    mj.Simulation(build.federation(own(**settings)))


@pytest.mark.parametrize('kind, function, words', [
    ('optimizer', 'failing_rate', 'failing_rate, which failed.*nope'),
    ('topology', 'failing_mix', 'failing_mix, which failed.*nope'),
    ('topology', 'other_mix', 'a function mix that returns a Mixed.*got dict'),
    ('compress', 'failing_bits', 'failing_bits, which failed.*nope')])
def test_functions_that_a_round_calls(own, kind, function, words):
  simulation = mj.Simulation(build.federation(own(**{
      kind: f'own_parts:{function}'})))
  with pytest.raises(UserError, match=words):
    simulation.compile()
    simulation.bytes_between_servers()


def test_an_augmentation_of_the_package_is_itself(own):
  made = build.federation(own(augmentation='own_parts:mixed_up')).augmentation
  assert made == augment.mixup(2.)


@pytest.mark.parametrize('kind, function, words', [
    ('schedule', 'falling', r'be 0 or more.*got -0.01\d* in round 2'),
    ('schedule', 'ending', 'must be a number, or .*got None'),
    ('schedule', 'failing_schedule', 'which failed: IndexError.*line 35'),
    ('schedule', 'not_a_rate', 'must be 0 or more.*got nan'),
    ('labels', 'short_labels', r'1438 .* 0 to 9; got int32 \[1437\]'),
    ('labels', 'other_labels', r'0 to 9; got int32 \[1438\] from 1 to 10'),
    ('labels', 'text_labels', r'0 to 9; got <U'),
    ('clock', 'short_clock', r'has 4 numbers of 0 or .*got float64 \[3\]'),
    ('clock', 'early_clock', 'seconds_per_example has 4 .*; got -1.0'),
    ('clock', 'endless_clock', 'download has 4 numbers above 0.*; got nan')])
def test_results_are_checked_before_a_run(own, kind, function, words):
  with pytest.raises(UserError, match=f'^{kind}.*:{function}.*{words}'):
    build.federation(own(**{kind: f'own_parts:{function}'}))


def test_a_clock_of_lists(own):
  rounds = build.federation(own(clock='own_parts:listed_clock')).rounds
  assert rounds.timeline.seconds[0] > 0


@pytest.mark.parametrize('warmup, rates', [
    (0, [.1, .2, .3]), (1, [.1, .1, .2])])
def test_a_schedule_with_warmup(own, warmup, rates):
  config = checks.validate(own(
      schedule=f'own_parts:rising(warmup={warmup})', num_rounds=3,
      learning_rate=.1))
  rate = learning_rates.make(config)
  assert [learning_rates.at_round(rate, index) for index in range(3)] == (
      pytest.approx(rates))


@pytest.mark.parametrize('settings, got', [
    ({'schedule': 'cosine'}, 'a schedule'), ({'learning_rate': .1}, '0.1')])
def test_an_optimizer_with_its_own_rate(own, settings, got):
  with pytest.raises(UserError, match=f'learning_rate must not.*; got {got}'):
    build.federation(own(optimizer='own_parts:own_rate', **settings))


def test_an_optimizer_that_is_a_rate(own):
  optimizer = build.federation(own(optimizer='own_parts:of_rate')).optimizer
  with pytest.raises(UserError, match='a transformation of optax; got float'):
    optimizers.make(optimizer, {'learning_rate': .1})


def test_runs_with_your_own_rule_share_a_program(own):
  one, other = (agreement.program_key(checks.validate(
      own(aggregation='own_parts:mean_rule', seed=seed, partition_seed=1)))
                for seed in (0, 1))
  assert one == other


def test_a_default_that_no_one_wrote_has_six_digits():
  _, arguments = parts.describe('algorithm', 'fedpac')
  assert '0.166667' in [argument.default for argument in arguments]
  assert parts.schema('algorithm', 'fedpac')['head_fraction'].default == 1 / 6
