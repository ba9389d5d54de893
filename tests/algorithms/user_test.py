"""Algorithms of users' own, from their own files."""

import dataclasses
import json
import re

import jax.numpy as jnp
import optax
import pytest

import moon_jax as mj
from moon_jax.algorithms.base import Message
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.methods import registry
from moon_jax.runs import run
from moon_jax.simulation import checks
from support import tiny_federation

CONFIG = Config(dataset='digits', num_clients=5, num_rounds=2, local_epochs=1,
                batch_size=16, learning_rate=.02, checkpoint_every=0,
                model='mlp')
MODULE = '''
from moon_jax import FromRun
from moon_jax.methods.fedavg import fedavg


def plain():
  return fedavg()


def counted(num_clients: FromRun[int], mu=2., *, local_epochs: FromRun[int],
            alpha=.1):
  return fedavg()._replace(hparams={
      "n": num_clients, "mu": mu, "a": alpha, "epochs": local_epochs})


class Made:
  def __new__(cls, num_clients: FromRun[int], mu=2.):
    return counted(num_clients, mu, local_epochs=1)


def with_(**functions):
  return lambda: fedavg()._replace(**functions)


from moon_jax.algorithms.base import Message
import jax.numpy as jnp

tree = with_(finish=lambda variables, view: (
    view.client, Message(variables["params"])))
single = with_(aggregate=lambda variables, server, message, call: message.mean)
grown = with_(init_client=lambda v: jnp.float32(0), finish=lambda v, view: (
    view.client + jnp.ones(3), Message(v)))
extra = with_(finish=lambda v, view: ({"extra": jnp.float32(0)}, Message(v)))
'''


@pytest.fixture
def module(tmp_path, monkeypatch, request):
  """The name of a module of its own for each test."""
  name = f'mine_{re.sub("[^a-z0-9]", "_", request.node.name)}'
  (tmp_path / f'{name}.py').write_text(MODULE)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(tmp_path)
  return name


def train(**changes):
  run.run(dataclasses.replace(CONFIG, **changes))


def test_changed_code_is_another_run(module, tmp_path):
  config = dict(algorithm=f'{module}:plain', workdir=str(tmp_path / 'run'))
  train(**config)
  written = json.loads((tmp_path / 'run' / 'config.json').read_text())
  assert set(written['inputs']) == {'algorithm'}
  (tmp_path / f'{module}.py').write_text(MODULE + '\n# changed\n')
  with pytest.raises(UserError, match='where algorithm=.* had other content'):
    train(**config)


@pytest.mark.parametrize('call, expected', [
    ('counted', (5, 2., .1, 1)), ('Made', (5, 2., .1, 1)),
    ('Made(mu=3)', (5, 3., .1, 1)),
    ('counted(alpha=0.5, mu=3.)', (5, 3., .5, 1))])
def test_factories_get_values_of_the_run_and_arguments(module, call, expected):
  hparams = registry.combined(checks.validate(dataclasses.replace(
      CONFIG, algorithm=f'{module}:{call}'))).hparams
  assert tuple(hparams[name] for name in ('n', 'mu', 'a', 'epochs')) == expected


def test_a_call_cannot_give_a_value_of_the_run(module):
  with pytest.raises(UserError, match='has the arguments mu, alpha; got num_c'):
    checks.validate(dataclasses.replace(
        CONFIG, algorithm=f'{module}:counted(num_clients=5)'))


@pytest.mark.parametrize('name, words', [
    ('tree', "a Message whose mean .*'fc1'..'bias'. is missing"),
    ('grown', 'finish must return a client state like the one of init_client; '
     r'.*float32\[3\], expected float32\[\]'),
    ('extra', r".'extra'. is float32\[\], expected nothing there"),
    ('single', r'aggregate must return three results.*mine_.*py, line 30\)')])
def test_errors_are_reported(module, name, words, tmp_path):
  """Others are in tests/invalid_input.toml."""
  with pytest.raises(UserError, match=words):
    train(algorithm=f'{module}:{name}')
  assert not list(tmp_path.glob('runs/*/metrics.jsonl'))


def test_integers_of_messages_are_added_as_numbers():
  """In the compiled loop, and as `aggregate` sees them when it is traced."""
  def finish(trained, view):
    return view.client, Message(
        (trained, view.num_examples),
        {'labels': view.label_counts, 'large': view.num_examples > 5})

  def aggregate(variables, server, message, call):
    trained, num_examples = message.mean
    return trained, message.total, {'examples': num_examples, **message.total}

  federation = tiny_federation.make(algorithm=mj.fedavg()._replace(
      init_server=lambda variables: {
          'labels': jnp.zeros(2), 'large': jnp.float32(0)},
      finish=finish, aggregate=aggregate), local_epochs=1)
  metrics = mj.Simulation(federation).run_round().metrics
  labels = federation.data.train_labels
  assert metrics['labels'] == [(labels == k).sum() for k in range(2)]
  assert metrics['large'] == 2
  sizes = jnp.array(tiny_federation.SIZES)
  assert metrics['examples'] == pytest.approx((sizes**2).sum() / sizes.sum())


def test_a_client_state_of_another_type_is_refused():
  algorithm = mj.fedavg()._replace(
      init_client=lambda variables: jnp.float32(0),
      finish=lambda trained, view: (jnp.int32(0), Message(trained)))
  with pytest.raises(UserError, match=r'is int32\[\], expected float32\[\]'):
    mj.Simulation(tiny_federation.make(algorithm=algorithm))


@pytest.mark.parametrize('functions, words', [
    ({'trains': lambda params, batch, view: [True]}, 'trains .*bool scalars'),
    ({'trains': lambda params, batch, view: {'out': True}}, 'trains .*bool'),
    ({'gradient': lambda objective, params, batch, view: objective(
        params, batch)}, 'gradient must return first the result of the obj'),
    ({'gradient': lambda objective, params, batch, view: params},
     'gradient must return a pair'),
    ({'gradient': lambda objective, params, batch, view: (
        objective(params, batch), 0.)}, 'a gradient like the parameters'),
    ({'aggregate': lambda variables, server, message, call: (
        message.mean, server, {'a': 'text', 'b': 1.})}, "as metrics; got 'a' "),
])
def test_results_of_a_wrong_structure_are_refused(functions, words):
  algorithm = mj.fedavg()._replace(**functions)
  with pytest.raises(UserError, match=words) as error:
    mj.Simulation(tiny_federation.make(algorithm=algorithm))
  assert 'user_test.py, line' in str(error.value)


def test_a_gradient_may_add_a_metric():
  def gradient(objective, params, batch, view):
    (loss, aux), grads = mj.fedavg().gradient(objective, params, batch, view)
    return (loss, aux._replace(metrics={'norm': optax.tree.norm(grads)})), grads

  simulation = mj.Simulation(tiny_federation.make(
      algorithm=mj.fedavg()._replace(gradient=gradient)))
  assert simulation.run_round().metrics['norm'] > 0


def test_metrics_of_a_loss_may_be_numbers():
  def loss(model, trained, batch, view):
    value, aux = mj.fedavg().loss(model, trained, batch, view)
    return value, aux._replace(metrics={'weight': .5})

  simulation = mj.Simulation(tiny_federation.make(
      algorithm=mj.fedavg()._replace(loss=loss)))
  assert simulation.run_round().metrics['weight'] == .5
