"""Your own parts: what they get of a run, and what they must return."""

import sys

import pytest

import moon_jax as mj
from moon_jax import optimizers
from moon_jax.config import Config, KINDS, parts
from moon_jax.errors import UserError
from moon_jax.simulation import agreement, build, checks

_CODE = """
import jax.numpy as jnp
import numpy as np
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
  assert topology.received == 2 * 3 / 4  # along the edges of a star


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
    ('aggregation', 'matrix_rule', r'\[339426\].*own_parts.py, line 19'),
    ('aggregation', 'one_result_rule', 'three results.*got float32'),
    ('aggregation', 'failing_rule', 'failing_rule, which.*nope.*line 25'),
    ('attack', 'far_attack', 'far_attack, which failed.*nope')])
def test_functions_of_a_rule_and_an_attack(own, kind, function, words):
  federation = build.federation(own(**{kind: f'own_parts:{function}'}))
  with pytest.raises(UserError, match=words):
    mj.Simulation(federation)


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
