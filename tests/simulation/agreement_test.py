"""Tests which federations may train in one program."""

import dataclasses
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_federation

from moon_jax.algorithms import registry
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.fedprox import fedprox
from moon_jax.algorithms.fedprox import with_proximal
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.server import with_optimizer
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.models.constructors import mlp
from moon_jax.simulation import agreement
from moon_jax.simulation.simulation import Simulations

FIRST = tiny_federation.make(batch_size=2)
LABELS = FIRST.data.train_labels


def changed(**changes):
  return dataclasses.replace(FIRST, **changes)


def check(federations):
  agreement.check(list(map(agreement.of_federation, federations)))


def scaled(scale):
  """Returns FedAvg with a constant in its loss, not in its hparams."""
  plain = fedavg()

  def loss(*arguments):
    value, aux = plain.loss(*arguments)
    return scale * value, aux

  return plain._replace(loss=loss)


@pytest.mark.parametrize('changes', [
    {'seed': 1}, {'learning_rate': .3}, {'momentum': 0.},
    {'gradient_clip': 1.}, {'local_epochs': 3}, {'weighting': 'uniform'},
    {'dropout_rate': .5}, {'cohorts': [[0], [1]]}, {'shuffle': False},
    {'clients': FIRST.clients[::-1]}, {'clients': FIRST.clients[:2]},
    {'algorithm': FIRST.algorithm._replace(hparams={'mu': 1.})},
    {'model': tiny_federation.make().model}, {'algorithm': fedavg()},
    {'data': FIRST.data._replace(train_labels=LABELS.copy())}])
def test_numbers_clients_and_rounds_may_differ(changes):
  check([FIRST, changed(**changes)])


@pytest.mark.parametrize('name, value', [
    ('optimizer', 'adam'), ('batch_size', 3), ('augment', False),
    ('augmentation_draws', 'recurring'),
    ('lanes', 2), ('evaluate_clients', True), ('keep_local_models', True),
    ('model', mlp(3)), ('algorithm', fedprox()),
    ('algorithm', scaled(2.)),
    ('names of hyperparameters', {'algorithm': fedavg()._replace(
        hparams={'alpha': .1})}),
    ('init_variables', {}), ('shard_data', True),
    ('data', FIRST.data._replace(train_labels=1 - LABELS)),
    ('data', FIRST.data._replace(test_labels=1 - FIRST.data.test_labels)),
    ('data', FIRST.data._replace(std=(2.,))),
    ('data', FIRST.data._replace(
        train_inputs=FIRST.data.train_inputs.copy()))])
def test_what_the_program_has_once_must_agree(name, value):
  with pytest.raises(UserError, match=f'the same {name}, that of number 2'):
    check([FIRST, FIRST, changed(
        **value if name not in vars(FIRST) else {name: value})])


@pytest.mark.parametrize('wrap', [
    lambda algorithm: algorithm, lambda algorithm: with_proximal(algorithm, .1),
    lambda algorithm: with_optimizer(algorithm, optax.sgd(1., momentum=.9)),
    lambda algorithm: algorithm._replace(
        loss=functools.partial(algorithm.loss)),
    lambda algorithm: algorithm._replace(loss=jax.jit(algorithm.loss))])
def test_what_functions_close_over_must_agree(wrap):
  """However deep it is; equal values in other functions are allowed."""
  one, equal, other = (
      changed(algorithm=wrap(scaled(scale))) for scale in (2., 2., 3.))
  check([one, equal])
  with pytest.raises(UserError, match='the same algorithm, that of number 1'):
    check([one, other])


def test_arrays_that_functions_close_over_must_agree():
  one, equal, other = (
      changed(algorithm=scaled(np.full(3, scale))) for scale in (2., 2., 3.))
  check([one, equal])
  with pytest.raises(UserError, match='the same algorithm'):
    check([one, other])


@pytest.mark.parametrize('name, value', [
    ('algorithm', scaled(2.)), ('algorithm', moon()),
    ('model', FIRST.model._replace(apply=lambda *_: None))])
def test_parts_of_a_configuration_may_have_been_replaced(name, value):
  of_config = [changed(config=Config(), algorithm=fedavg(), model=mlp(2))
               for _ in range(2)]
  check(of_config)
  with pytest.raises(UserError, match=f'the same {name}, that of number 1'):
    check(
        [of_config[0], dataclasses.replace(of_config[1], **{name: value})])


def test_augmentation_must_agree():
  """Of the same images; it belongs to the data set."""
  data = FIRST.data
  images = changed(data=data._replace(
      train_inputs=np.zeros((len(LABELS), 4, 4, 1), np.uint8),
      test_inputs=np.zeros((len(data.test_labels), 4, 4, 1), np.uint8)))
  flipped = dataclasses.replace(images, data=images.data._replace(
      augmentation='reflect_crop_flip'))
  check([images, dataclasses.replace(images, seed=1)])
  with pytest.raises(UserError, match='the same data'):
    check([images, flipped])


def test_noise_must_agree():
  noisy = changed(input_noise_std=np.full(len(LABELS), .1, np.float32))
  check([noisy, dataclasses.replace(noisy, seed=1)])
  with pytest.raises(UserError, match='the same data'):
    check([FIRST, noisy])


def test_frozen_outputs_must_be_computed_at_the_same_time():
  frozen = changed(algorithm=moon(), local_epochs=2)
  with pytest.raises(UserError, match=r'reuse of frozen outputs.*local_epochs'):
    Simulations([frozen, dataclasses.replace(frozen, local_epochs=1)])


def test_simulations_check_their_federations():
  with pytest.raises(UserError, match='program of its own'):
    Simulations([FIRST, changed(optimizer='adam')])


def test_numbers_that_a_factory_makes_constants_must_agree(
    tmp_path, monkeypatch):
  (tmp_path / 'factories.py').write_text("""
import jax
import moon_jax

def plain(config):
  return moon_jax.fedavg()._replace(hparams={'mine': config.seed})

def scaled(config):
  scale = 1. + config.seed
  return moon_jax.fedavg()._replace(transform_grads=lambda grads, view: scale)

def reading(config):
  return moon_jax.fedavg()._replace(
      transform_grads=lambda grads, view: config.seed)

SCALE = 1.

def transform(grads, view):
  return jax.tree.map(lambda grad: SCALE * grad, grads)

def of_module(config):
  global SCALE
  SCALE = 1. + config.seed
  return moon_jax.fedavg()._replace(transform_grads=transform)
""")
  monkeypatch.syspath_prepend(str(tmp_path))

  def of(**fields):
    config = Config(**fields)
    return agreement.of_federation(
        changed(algorithm=registry.make(config), config=config))

  found = {}
  for name in 'plain', 'scaled', 'reading', 'of_module':
    user = dict(algorithm=f'factories:{name}')
    found[name] = [of(**user) == of(**user, **changes) for changes in (
        dict(seed=1), dict(beta=.1), dict(eval_every=2))]
  assert found == {'plain': [True, True, True], 'scaled': [False, True, True],
                   'reading': [False, False, True],
                   'of_module': [False, True, True]}


def clipped(limit):
  """Returns a function whose derivative alone has a constant."""
  @jax.custom_vjp
  def identity(x):
    return x

  identity.defvjp(lambda x: (x, None),
                  lambda _, grad: (jnp.clip(grad, -limit, limit),))
  return lambda x: identity(x).sum()


def without_value(is_set):
  """Returns a function of a variable that may have no value yet."""
  if is_set:
    value = 1
  return lambda: value


@dataclasses.dataclass
class _Layer:
  size: int = 1


class _Scaled(_Layer):  # no dataclass: its scale is no field

  def __init__(self, scale):
    super().__init__()
    self.scale = scale


@pytest.mark.parametrize('make, one, other', [
    (clipped, 1., 2.), (without_value, True, False),
    (_Scaled, 1., 2.), (lambda x: lambda: {x}, 1, 2),
    (lambda x: jax.jit(lambda y, z: y, static_argnums=x), 0, 1)])
def test_objects_agree_in_all_that_they_hold(make, one, other):
  value = agreement._value
  assert value(make(one)) == value(make(one)) != value(make(other))


def test_modules_agree_in_their_fields():
  value = agreement._value
  assert value(nn.Dense(3)) == value(nn.Dense(3)) != value(nn.Dense(4))


def test_an_object_of_unknown_contents_is_no_other_at_its_address():
  """It is kept, so that none can have its address."""
  class Unknown:
    __slots__ = ()
    __hash__ = None

  values = {agreement._value(Unknown()) for _ in range(3)}
  assert len(values) == 3
