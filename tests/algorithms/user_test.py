"""Algorithms of users' own, from their own files."""

import dataclasses
import json
import re

import pytest

from moon_jax import user_code
from moon_jax.algorithms import registry, user
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.fedprox import fedprox
from moon_jax.algorithms.moon import moon
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.simulation import checks
from moon_jax.training import run

CONFIG = Config(dataset='digits', num_clients=5, num_rounds=2, local_epochs=1,
                batch_size=16, learning_rate=.02, checkpoint_every=0,
                model='mlp')
MODULE = '''
from moon_jax.algorithms.fedavg import fedavg


def plain(config):
  return fedavg()


def counted(num_clients, mu=2., *, config, alpha=.1):
  assert config.num_clients == num_clients
  return fedavg()._replace(hparams={"n": num_clients, "mu": mu, "a": alpha})


def only(config, /):
  return counted(config.num_clients, config=config)


def any_(*args):
  return only(*args)


def renamed(cfg, num_clients):
  return counted(num_clients, config=cfg)


class Made:
  def __new__(cls, config):
    return only(config)


def with_(**functions):
  return lambda config: fedavg()._replace(**functions)


from moon_jax.algorithms.base import Message
import jax.numpy as jnp

tree = with_(finish=lambda variables, view: (
    view.client, Message(variables["params"])))
single = with_(aggregate=lambda variables, server, message: message.mean)
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
  with pytest.raises(UserError, match='where --algorithm=mine.*had other'):
    train(**config)


def test_arguments_are_literals_or_words():
  text = 'a=0.5, b=(1, 2),c=mean,d=None,e=-1,f="x\\",y=1",g=global,h=v1.0,'
  assert user_code.parse_args('algorithm_args', text) == {
      'a': .5, 'b': (1, 2), 'c': 'mean', 'd': None, 'e': -1, 'f': 'x",y=1',
      'g': 'global', 'h': 'v1.0'}
  assert user_code.parse_args('algorithm_args', '') == {}


@pytest.mark.parametrize('factory, args, expected', [
    *[(name, '', (5, 2., .1)) for name in (
        'counted', 'only', 'any_', 'renamed', 'Made')],
    ('counted', 'alpha=.5,mu=3.', (5, 3., .5)),
    ('counted', 'num_clients=5', (5, 2., .1))])
def test_factories_get_the_configuration_flags_and_arguments(
    module, factory, args, expected):
  hparams = user.make(dataclasses.replace(
      CONFIG, algorithm=f'{module}:{factory}', algorithm_args=args)).hparams
  assert (hparams['n'], hparams['mu'], hparams['a']) == expected


@pytest.mark.parametrize('own, flags, expected', [
    ({}, {}, (0, .5)), ({}, dict(mu=1., temperature=.1), (1, .1)),
    (dict(mu=3., temperature=.2), {}, (3, .2)),
    (dict(mu=3., temperature=.2), dict(mu=0., temperature=.2), (0, .2))])
def test_mu_and_temperature_of_flags_replace_own_ones(
    own, flags, expected, monkeypatch):
  monkeypatch.setattr(
      user, 'make', lambda config: fedavg()._replace(hparams=own))
  hparams = registry.combined(checks.validate(dataclasses.replace(
      CONFIG, algorithm='mine:f', **flags))).hparams
  assert (hparams['mu'], hparams['temperature']) == expected


def test_a_factory_gets_a_mu_of_0_if_none_is_given(monkeypatch):
  monkeypatch.setattr(
      user_code, 'load', lambda flag, name: lambda mu: fedprox(mu))
  for flags, mu in ({}, 0), (dict(mu=2.), 2):
    config = dataclasses.replace(CONFIG, algorithm='mine:fedprox', **flags)
    assert registry.combined(config).hparams['mu'] == mu


def test_a_temperature_that_would_not_be_used_is_refused(monkeypatch):
  monkeypatch.setattr(user, 'make', lambda config: moon(temperature=.2))
  with pytest.raises(UserError, match='--temperature=0.1 has no effect'):
    registry.combined(
        dataclasses.replace(CONFIG, algorithm='mine:f', temperature=.1))


@pytest.mark.parametrize('name, words', [
    ('tree', "a Message whose mean .*'fc1'..'bias'. is missing"),
    ('grown', 'finish must return a client state like the one of init_client; '
     r'.*float32\[3\], expected float32\[\]'),
    ('extra', r".'extra'. is float32\[\], expected nothing there"),
    ('single', r'aggregate must return a pair.*mine_.*py, line 40\)')])
def test_errors_are_reported(module, name, words, tmp_path):
  """Others are in tests/invalid_input.toml."""
  with pytest.raises(UserError, match=words):
    train(algorithm=f'{module}:{name}')
  assert not list(tmp_path.glob('runs/*/metrics.jsonl'))
