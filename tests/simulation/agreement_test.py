"""Tests which configurations and federations may train in one program."""

import dataclasses
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax.algorithms.server import with_server_optimizer
from moon_jax.config import Config, flags_with, Part
from moon_jax.data import rounds
from moon_jax.errors import UserError
from moon_jax.methods import registry
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedprox import fedprox, with_proximal
from moon_jax.methods.moon import moon
from moon_jax.models import mlp
from moon_jax.simulation import agreement, build, round_spec
from moon_jax.simulation.agreement import program_key
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.program import Program
from support import tiny_federation

FIRST = tiny_federation.make(batch_size=2)
LABELS = FIRST.data.train_labels


def changed(**changes):
  return dataclasses.replace(FIRST, **changes)


def check(*federations):
  agreement.check(list(map(agreement.federation_values, federations)))


def scaled(scale):
  """Returns FedAvg with a constant in its loss, not in its hparams."""
  plain = fedavg()

  def loss(*arguments):
    value, aux = plain.loss(*arguments)
    return scale * value, aux

  return plain._replace(loss=loss)


@pytest.mark.parametrize('changes', [
    {'seed': 1}, {'learning_rate': .3}, {'gradient_clip': 1.},
    {'optimizer': 'sgd(momentum=0)'}, {'optimizer': 'sgd(weight_decay=0.1)'},
    {'local_epochs': 3}, {'weighting': 'uniform'},
    {'rounds': rounds.with_dropout(rounds.all_clients(), .5)},
    {'rounds': rounds.listed([[0], [1]])}, {'shuffle': False},
    {'clients': FIRST.clients[::-1]}, {'clients': FIRST.clients[:2]},
    {'model': tiny_federation.make().model}, {'algorithm': fedavg()},
    {'data': FIRST.data._replace(train_labels=LABELS.copy())},
    {'data': FIRST.data._replace(
        train_inputs=FIRST.data.train_inputs.copy(),
        test_inputs=FIRST.data.test_inputs.copy())}])
def test_numbers_clients_and_rounds_may_differ(changes):
  check(FIRST, changed(**changes))


def test_numbers_of_methods_and_optimizers_may_differ():
  check(changed(algorithm=moon(mu=1.), optimizer='adam'),
        changed(algorithm=moon(mu=2., temperature=.1),
                optimizer='adam(weight_decay=0)'))
  rate = functools.partial(optax.adamw, weight_decay=.1)
  check(changed(optimizer=rate), changed(optimizer=rate, learning_rate=.3))
  for one, other in (adamw(.1), adamw(.2)), (optax.adam(.1), optax.adam(.2)):
    one, other = (changed(optimizer=optimizer, learning_rate=.01)
                  for optimizer in (one, other))
    check(one, one)
    with pytest.raises(UserError, match='the same optimizer'):
      check(one, other)


def adamw(weight_decay):
  return lambda rate: optax.adamw(rate, weight_decay=weight_decay)


@pytest.mark.parametrize('name, value', [
    ('optimizer', 'adam'),
    ('optimizer', {'optimizer': optax.sgd(.1), 'learning_rate': .01}),
    ('optimizer', optax.sgd), ('optimizer', 'lion'),
    ('batch_size', 3), ('augment', False),
    ('augmentation', lambda key, inputs: inputs),
    ('lanes', 2), ('evaluate_clients', True), ('keep_local_models', True),
    ('model', mlp(3)), ('algorithm', fedprox()),
    ('algorithm', scaled(2.)),
    ('names of hyperparameters', {'algorithm': fedavg()._replace(
        hparams={'alpha': .1})}),
    ('init_variables', {}), ('shard_data', True), ('debug', True),
    ('evaluate_all', {'evaluate_all': True, 'client_tests': mj.ClientTests(
        [[0]] * FIRST.num_clients, 'test')}),
    ('data', FIRST.data._replace(train_labels=1 - LABELS)),
    ('data', FIRST.data._replace(test_labels=1 - FIRST.data.test_labels)),
    ('data', FIRST.data._replace(std=(2.,))),
    ('data', {'input_noise_std': np.full(len(LABELS), .1, np.float32)}),
    ('data', FIRST.data._replace(
        train_inputs=-FIRST.data.train_inputs)),
    ('data', FIRST.data._replace(
        test_inputs=-FIRST.data.test_inputs))])
def test_what_the_program_has_once_must_agree(name, value):
  changes = value if isinstance(value, dict) and value else {name: value}
  with pytest.raises(UserError, match=f'the same {name}; got .*number 2'):
    check(FIRST, FIRST, changed(**changes))


def test_equal_initial_models_agree():
  models = [mlp(2).init(jax.random.key(seed), jnp.ones((1, 4)))
            for seed in (0, 0, 1)]
  one, equal, other = (changed(init_variables=model) for model in models)
  check(one, equal)
  for different in other, FIRST, changed(
      init_variables=jax.tree.map(np.float64, models[0])):
    with pytest.raises(UserError, match='the same init_variables; got .*num'):
      check(one, different)


def test_data_of_other_runs_may_be_at_the_same_address():
  """The facts of a run are kept when its data are gone."""
  inputs = [sign * FIRST.data.train_inputs for sign in (1, -1)]
  facts = [agreement.federation_values(changed(
      data=FIRST.data._replace(train_inputs=x.copy()))) for x in inputs * 4]
  for x, y in zip(facts, facts[1:]):
    with pytest.raises(UserError, match='the same data; got .*number 1'):
      agreement.check([x, y])


@pytest.mark.parametrize('wrap', [
    lambda algorithm: algorithm, lambda algorithm: with_proximal(algorithm, .1),
    lambda algorithm: with_server_optimizer(
        algorithm, optax.sgd(1., momentum=.9)),
    lambda algorithm: algorithm._replace(
        loss=functools.partial(algorithm.loss)),
    lambda algorithm: algorithm._replace(loss=jax.jit(algorithm.loss))])
@pytest.mark.parametrize('value', [float, lambda scale: np.full(3, scale)])
def test_what_functions_close_over_must_agree(wrap, value):
  """However deep it is; equal values in other functions are allowed."""
  one, equal, other = (
      changed(algorithm=wrap(scaled(value(scale)))) for scale in (2, 2, 3))
  check(one, equal)
  with pytest.raises(UserError, match='the same algorithm; got .*number 1'):
    check(one, other)


@pytest.mark.parametrize('name, value', [
    ('algorithm', scaled(2.)),
    ('model', FIRST.model._replace(apply=lambda *_: None))])
def test_parts_of_a_configuration_may_have_been_replaced(name, value):
  one, equal = (changed(
      algorithm=fedavg()._replace(source=source),
      model=mlp(2)._replace(source=source)) for source in ('mlp', ''))
  check(one, equal)
  with pytest.raises(UserError, match=f'the same {name}; got .*number 1'):
    check(one, dataclasses.replace(equal, **{name: value}))


def test_a_federation_does_not_know_how_it_was_made(digits):
  """That of a configuration is the one that is made by hand."""
  built = build.federation(Config(
      dataset='digits', model='mlp(projection_dim=8)', algorithm='moon(mu=1)',
      num_clients=4, partition='iid', num_rounds=3), digits)
  made = Federation(
      data=digits, clients=built.clients, model=mlp(10, projection_dim=8),
      algorithm=moon(mu=2.), rounds=rounds.listed([[0]]))
  agreement.check([agreement.shared_values(round_spec.alone(federation))
                   for federation in (built, made)])


def test_simulations_check_their_federations():
  with pytest.raises(UserError, match='program of its own'):
    Program([FIRST, changed(optimizer='adam')])
  frozen = changed(algorithm=moon(), local_epochs=2)
  with pytest.raises(UserError, match=r'reuse of frozen outputs.*local_epochs'):
    Program([frozen, dataclasses.replace(frozen, local_epochs=1)])


def test_numbers_that_a_factory_makes_constants_must_agree(
    tmp_path, monkeypatch):
  (tmp_path / 'factories.py').write_text("""
import jax
import moon_jax
import numpy as np

def plain(x: int = 0):
  return moon_jax.fedavg()._replace(hparams={'mine': x})

def scaled(x: int = 0):
  scale = 1. + x
  return moon_jax.fedavg()._replace(transform_grads=lambda grads, view: scale)

def of_rounds(num_rounds: moon_jax.FromRun[int], x: int = 0):
  return moon_jax.fedavg()._replace(
      transform_grads=lambda grads, view: num_rounds)

SCALE = 1.

def transform(grads, view):
  return jax.tree.map(lambda grad: SCALE * grad, grads)

def of_module(x: int = 0):
  global SCALE
  SCALE = 1. + x
  return moon_jax.fedavg()._replace(transform_grads=transform)

SCALES = {}

def scaled_by_name(grad):
  return SCALES['all'][0] * grad

def by_name(grads, view):
  return jax.tree.map(scaled_by_name, grads)

def of_its_dict(x: int = 0):
  SCALES['all'] = np.full(2, 1. + x),
  return moon_jax.fedavg()._replace(transform_grads=by_name)
""")
  monkeypatch.syspath_prepend(str(tmp_path))

  def of(algorithm, **fields):
    return agreement.federation_values(changed(
        algorithm=registry.make(Config(algorithm=algorithm, **fields))))

  found = {}
  for name in 'plain', 'scaled', 'of_rounds', 'of_module', 'of_its_dict':
    one = of(f'factories:{name}')
    found[name] = [one == other for other in (
        of(f'factories:{name}(x=1)'), of(f'factories:{name}', num_rounds=7),
        of(f'factories:{name}', seed=1, partition='dirichlet(beta=0.1)'))]
  assert found == {'plain': [True, True, True], 'scaled': [False, True, True],
                   'of_rounds': [True, False, True],
                   'of_module': [False, True, True],
                   'of_its_dict': [False, True, True]}


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
    (_Scaled, 1., 2.), (lambda x: lambda: {x}, 1, 2), (nn.Dense, 3, 4),
    (lambda x: jax.jit(lambda y, z: y, static_argnums=x), 0, 1)])
def test_objects_agree_in_all_that_they_hold(make, one, other):
  value = agreement._value
  assert value(make(one)) == value(make(one)) != value(make(other))


def test_objects_of_unknown_contents_agree_with_themselves_only():
  unknown = type('Unknown', (), {'__slots__': (), '__hash__': None})
  # Also if the object is gone: the next one may have its address.
  assert agreement._value(unknown()) != agreement._value(unknown())
  shared = unknown()
  assert agreement._value(shared) == agreement._value(shared)


FIXED = flags_with(varies='')
COMPARED = flags_with(varies='algorithm') + flags_with(varies='optimizer')
VARYING = set(Config().to_dict()) - {*FIXED, *COMPARED}

# Another call of each kind of part.
OTHER = {
    'labels': 'noise(rate=0.1)', 'partition': 'iid', 'schedule': 'cosine',
    'cohort': 'power_of_choice', 'clock': 'lognormal', 'model': 'mlp',
    'algorithm': 'fedavg', 'aggregation': 'median', 'optimizer': 'adam',
    'server': 'adam', 'attack': 'sign_flip', 'compress': 'sign',
    'rounds': 'fedbuff(concurrency=4, buffer_size=2)',
    'privacy': 'client(clip=1)', 'topology': 'ifca(clusters=2)',
    'augmentation': 'cutout'}


def with_other(config, name):
  """Returns `config` with another value of a field, valid or not."""
  value = getattr(config, name)
  kind = type(getattr(Config(), name))
  other = {bool: lambda: not value, str: lambda: value + 'x',
           int: lambda: value + 1, float: lambda: value + .25,
           Part: lambda: OTHER[name]}[kind]()
  return dataclasses.replace(config, **{name: other})


# Fields of which only a part varies; the tests below have their changes.
PARTLY = {'labels', 'partition', 'client_eval_every', 'local_steps'}


def test_fields_that_do_not_vary_change_the_key():
  config = Config(client_eval_every=2, new_clients=.1)
  for name in VARYING - PARTLY:
    assert program_key(config) == program_key(with_other(config, name)), name
  for name in FIXED + COMPARED:
    key = program_key(with_other(config, name))
    assert key != program_key(config), name
    assert hash(key) == hash(program_key(with_other(config, name)))


SERVER = dict(server='sgd(momentum=0.7)')
NOISY = dict(partition='feature_noise')
LABELS = dict(labels='noise(rate=0.1)')
SHIFT = dict(labels='shift(groups=2)')
PRIVATE = dict(algorithm='fedavg', weighting='uniform',
               privacy='client(clip=1)')
OTHERS = dict(seed=1, algorithm='moon(mu=0.5)')


@pytest.mark.parametrize('flags, changes, is_shared', [
    ({}, dict(partition='iid'), True),
    ({}, dict(local_epochs=1), False),  # freeze_once
    ({}, dict(local_steps=1), False),
    (dict(local_steps=1), dict(local_steps=2), True),
    (dict(local_epochs=1), dict(local_steps=2), True),
    (dict(local_epochs=1), dict(local_epochs=2), False),
    ({}, dict(client_eval_every=1), False),  # keep_models
    ({}, dict(new_clients=.2), False),
    (dict(new_clients=.1), dict(new_clients=.2), True),
    (dict(client_eval_every=1), dict(client_eval_every=5), True),
    ({}, SERVER, False),  # the state of a server optimizer
    ({}, dict(server='sgd(learning_rate=0.5)'), False),
    ({}, dict(algorithm='moon(proximal_mu=0.1)'), False),  # a proximal term
    (dict(algorithm='moon(proximal_mu=0.1)'),
     dict(algorithm='moon(proximal_mu=0.2)'), True),
    (SERVER, dict(server='sgd(learning_rate=0.5)'), True),
    (SERVER, dict(server='sgd(momentum=0.7, form=ema)'), False),
    (dict(server='adam'), dict(server='adam(learning_rate=0.1)'), True),
    # Numbers of the method and of the optimizer are arrays.
    ({}, dict(algorithm='moon(mu=1, temperature=0.1)'), True),
    ({}, dict(algorithm='moon(num_negatives=2)'), False),
    ({}, dict(optimizer='sgd(momentum=0, weight_decay=0)'), True),
    ({}, dict(optimizer='adam'), False),
    (dict(optimizer='adamw'), dict(optimizer='adamw(weight_decay=0.01)'),
     False),
    # The noise on the inputs belongs to the examples of a split.
    ({}, NOISY, False),
    (NOISY, dict(seed=1), False),
    (NOISY, dict(partition_seed=3), False),
    (NOISY | dict(partition_seed=3), dict(seed=1), True),
    (NOISY, dict(partition='feature_noise(noise_std=0.2)'), False),
    (NOISY, dict(client_test_fraction=.2, client_eval_every=1), False),
    (NOISY, dict(algorithm='moon(mu=0.5)',
                 rounds='synchronous(dropout_rate=0.1)'), True),
    (dict(partition='iid'), dict(partition='rotated'), False),
    (dict(partition='rotated'), dict(seed=1), False),
    (dict(partition='rotated', partition_seed=3), dict(seed=1), True),
    # So do changed labels.
    ({}, LABELS, False), ({}, SHIFT, False),
    (LABELS, dict(labels='noise(rate=0.2)'), False),
    (LABELS, dict(labels='noise(rate=0.1, form=localized)'), False),
    (LABELS, dict(seed=1), False),
    (LABELS, dict(partition='dirichlet(beta=0.1)'), False),
    (SHIFT, dict(labels='shift(groups=3)'), False),
    (SHIFT, dict(seed=1), False),
    (SHIFT | dict(partition_seed=0), OTHERS, True),
    # Clients of these splits may share examples: freeze_once.
    ({}, dict(partition='mine:split'), False),
    (dict(partition='mine:split'), dict(seed=1), False),
    ({}, dict(partition='file(path=a.npz)'), False),
    (dict(partition='file(path=a.npz)'), dict(partition='file(path=b.npz)'),
     False),
    (dict(partition='file(path=a.npz)'), dict(seed=1), True),
    # The cohort size of differential privacy.
    (PRIVATE, dict(seed=1), True), (PRIVATE, dict(participation=.5), False),
    (PRIVATE, dict(privacy='client(clip=1, delta=1e-6)', learning_rate=.1,
                   partition='dirichlet(beta=0.1)'), True),
    (dict(algorithm='fedavg'), dict(participation=.5), True),
    (PRIVATE, dict(privacy='client(clip=1.0)'), True),  # another type
])
def test_what_must_agree(flags, changes, is_shared):
  config = Config(**flags)
  other = dataclasses.replace(config, **changes)
  assert (program_key(config) == program_key(other)) == is_shared
