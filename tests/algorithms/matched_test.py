"""Matched averaging: SciPy's assignments, a NumPy loop, permuted copies."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import moon_jax as mj
from moon_jax.algorithms import matching, robust, updates
from moon_jax.algorithms.base import Each
from moon_jax.config import Config
from moon_jax.errors import of_command, UserError
from moon_jax.models import hidden
from moon_jax.simulation import build


class Net(nn.Module):
  """A convolution, whose outputs are flattened, and two dense layers."""

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Conv(4, (3, 3), padding='VALID')(x))
    x = nn.relu(nn.Dense(5)(x.reshape(len(x), -1)))
    return nn.Dense(3)(x)


MODEL, LAYERS = mj.from_flax(Net()), ['Conv_0', 'Dense_0', 'Dense_1']
IMAGES = np.random.default_rng(0).integers(
    0, 256, (40, 4, 4, 1)).astype(np.uint8)
LABELS = np.arange(40) % 3
# The layers of networks, and an input.
NETWORKS = {
    'own': (MODEL, LAYERS, (4, 4, 1)),
    'mlp': (mj.mlp(3, 8), ['fc1', 'fc2', 'proj1', 'proj2', 'out'], (5,)),
    'mlp without head': (mj.mlp(3, None), ['fc1', 'fc2', 'out'], (5,)),
    'simple_cnn': (mj.simple_cnn(3, 8), [
        'conv1', 'conv2', 'fc1', 'fc2', 'proj1', 'proj2', 'out'], (20, 20, 2))}


def rule_layers(name):
  """Returns the argument `layers`; built-in networks need none."""
  return ' '.join(LAYERS) if name == 'own' else ''


def rule_of(name, reference='global'):
  return robust.matched(reference, rule_layers(name))


def init(model, shape, seed=0):
  return jax.jit(model.init)(jax.random.key(seed), jnp.zeros((1, *shape)))


def np_permuted(params, layers, orders):
  """Returns layers whose units n were units order[n], by explicit loops."""
  params = {name: {key: np.array(x) for key, x in params[name].items()}
            for name in layers}
  for layer, following, order in zip(layers, layers[1:], orders):
    for key, x in params[layer].items():
      params[layer][key] = np.stack([x[..., n] for n in order], -1)
    kernel = params[following]['kernel']
    if kernel.ndim == 4:
      moved = np.stack([kernel[:, :, n] for n in order], 2)
    else:  # the image is flattened, or has one pixel
      pixels = kernel.reshape(-1, len(order), kernel.shape[-1])
      moved = np.stack([pixels[:, n] for n in order], 1).reshape(kernel.shape)
    params[following]['kernel'] = moved
  return params


def np_matched(models, reference, layers):
  """Returns models in the order of the reference, by SciPy."""
  found = []
  for params in models:
    orders = []
    for layer in layers[:-1]:
      moved = np_permuted(params, layers, orders)[layer]
      incoming = [np.concatenate([
          weights['kernel'].reshape(-1, weights['bias'].size),
          weights['bias'][None]]).T for weights in (reference[layer], moved)]
      cost = [[((a - b)**2).sum() for b in incoming[1]] for a in incoming[0]]
      orders.append(optimize.linear_sum_assignment(cost)[1])
    found.append(np_permuted(params, layers, orders))
  return found


def np_mean(models, weights):
  return jax.tree.map(
      lambda *x: sum(p * x_j for p, x_j in zip(weights, x)), *models)


def random_orders(params, layers, random):
  return [random.permutation(params[layer]['bias'].size)
          for layer in layers[:-1]]


def applied(rule, models, weights, variables, client=None):
  """Returns the server's next parameters, and the metrics of the rule."""
  u = np.stack([updates.flat({'params': x}) - updates.flat(variables)
                for x in models])
  client = np.arange(len(u)) if client is None else np.asarray(client)
  rows = updates.in_order(Each(
      u, np.float32(weights), np.ones(len(u), bool), client.astype(np.int32)))
  update, _, metrics = _compiled(rule)(rows, variables)
  return updates.moved(variables, update)['params'], metrics


@functools.cache
def _compiled(rule):
  return jax.jit(lambda rows, variables: rule.apply(
      rows, (), jax.random.key(0), variables))


def assert_close(params, expected, atol=1e-6):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol),
               {name: dict(layer) for name, layer in params.items()}, expected)


@pytest.mark.parametrize('size', [1, 2, 6, 30])
def test_assignments_are_those_of_scipy(size):
  random = np.random.default_rng(size)
  costs = np.concatenate([
      random.normal(size=(20, size, size)), -random.uniform(
          0, 1e4, (5, size, size)), random.integers(0, 4, (10, size, size)),
      np.zeros((1, size, size))]).astype(np.float32)
  found = np.asarray(jax.jit(jax.vmap(matching.assignment))(costs))
  for cost, columns in zip(costs, found):
    rows, expected = optimize.linear_sum_assignment(cost)
    assert sorted(columns) == list(rows)
    # Of equal sums there are several assignments.
    assert cost[rows, columns].sum() == pytest.approx(
        cost[rows, expected].sum(), rel=1e-6)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf, 3e38])
def test_assignments_end_for_any_numbers(value):
  random = np.random.default_rng(0)
  costs = random.normal(size=(20, 6, 6)).astype(np.float32)
  is_changed = random.uniform(size=costs.shape) < np.linspace(
      .03, 1, 20)[:, None, None]
  signs = random.choice([-1, 1], costs.shape) if np.isfinite(value) else 1
  costs = np.where(is_changed, np.float32(value) * signs, costs)
  found = np.asarray(jax.jit(jax.vmap(matching.assignment))(
      costs.astype(np.float32)))
  assert all(sorted(columns) == [*range(6)] for columns in found)


@pytest.mark.parametrize('name', [pytest.param(
    name, marks=[pytest.mark.long] * (name == 'simple_cnn'))
                                  for name in NETWORKS])
def test_units_change_places_without_an_effect(name):
  """Also those of flattened images, and of the projection head."""
  model, layers, shape = NETWORKS[name]
  variables, random = init(model, shape), np.random.default_rng(3)
  orders = random_orders(variables['params'], layers, random)
  axes, counts = hidden.chain(variables, rule_layers(name))
  moved = variables
  assert list(counts) == layers[:-1]
  for layer, order in zip(layers, orders):
    moved = matching.permuted(moved, axes, layer, jnp.asarray(order))
  assert_close(moved['params'], np_permuted(
      variables['params'], layers, orders), 0)
  inputs = random.normal(size=(6, *shape)).astype(np.float32)
  before, after = (np.asarray(model.apply(
      x, inputs, jnp.ones(6), train=False)[0].logits)
                   for x in (variables, moved))
  np.testing.assert_allclose(after, before, atol=1e-5)
  if name == 'own':  # an effect if the next layer does not follow
    wrong = {'params': {**variables['params'],
                        'Conv_0': moved['params']['Conv_0']}}
    assert abs(np.asarray(model.apply(wrong, inputs, None, train=False)[
        0].logits) - before).max() > 1e-2


@pytest.mark.parametrize('name', ['own', 'mlp', pytest.param(
    'simple_cnn', marks=pytest.mark.long)])
def test_the_mean_is_that_of_a_numpy_loop(name):
  """Of models from other seeds, whose units have nothing in common."""
  model, layers, shape = NETWORKS[name]
  variables, *clients = (init(model, shape, seed) for seed in range(4))
  models = [x['params'] for x in clients]
  weights = [.5, .2, .3]
  found, metrics = applied(rule_of(name), models, weights, variables)
  matched = np_matched(models, variables['params'], layers)
  assert_close(found, np_mean(matched, weights))
  assert .5 < metrics['units_moved'] < 1
  # Whatever the order of the clients; but the lowest number is a reference.
  turned = models[1:] + models[:1], weights[1:] + weights[:1], variables
  assert_close(applied(rule_of(name), *turned)[0], np_mean(matched, weights))
  if name == 'own':
    like = np_mean(np_matched(models, models[0], layers), weights)
    rule = rule_of(name, 'client')
    assert_close(applied(rule, models, weights, variables)[0], like)
    assert_close(applied(rule, *turned, [1, 2, 0])[0], like)
    assert abs(applied(rule, *turned)[0]['Dense_0']['kernel']
               - like['Dense_0']['kernel']).max() > 1e-2


@pytest.mark.parametrize('name', ['mlp', pytest.param(
    'simple_cnn', marks=pytest.mark.long)])
def test_permuted_copies_of_a_model_average_to_it(name):
  model, layers, shape = NETWORKS[name]
  variables, random = init(model, shape), np.random.default_rng(2)
  params = variables['params']
  copies = [np_permuted(params, layers, random_orders(params, layers, random))
            for _ in range(5)]
  found, metrics = applied(
      rule_of(name), copies, [.1, .3, .2, .15, .25], variables)
  assert_close(found, jax.tree.map(np.asarray, dict(params)), 1e-7)
  assert metrics['units_moved'] > .8
  plain = np_mean(copies, [.1, .3, .2, .15, .25])
  assert abs(plain['fc1']['kernel'] - params['fc1']['kernel']).max() > .01


def federation(algorithm, seed=0, **fields):
  data = mj.Dataset('images', IMAGES, LABELS, IMAGES[:6], LABELS[:6],
                    (*'abc',))
  return mj.Federation(
      data=data, clients=np.split(np.arange(40), [8, 20, 31]), model=MODEL,
      algorithm=algorithm, batch_size=4, local_epochs=1, learning_rate=.01,
      optimizer='sgd(momentum=0.5)', seed=seed, **fields)


@pytest.mark.long
def test_clients_of_permuted_units_train_as_those_of_plain_averages():
  """Two runs in a program, of which one continues from its saved state."""
  def start(view):
    """A model whose units have the order of this client and round."""
    variables = view.variables
    axes, counts = hidden.chain(variables, ' '.join(LAYERS))
    for layer, count in counts.items():
      variables = matching.permuted(variables, axes, layer, jax.random.
                                    permutation(view.key, count))
    return variables

  average = mj.Simulation(federation(mj.fedavg(), seed=1, lanes=1))
  algorithm = robust.with_rule(
      mj.fedavg()._replace(start=start), rule_of('own'))
  program = mj.Program([federation(
      algorithm, seed, lanes=2) for seed in range(2)])
  runs = [mj.Simulation(program, run=run) for run in range(2)]
  program.run_round([0, 1])
  saved = runs[1].state_on_host()
  first, second = (record.metrics for record in program.run_round([0, 1]))
  assert first['units_moved'] > .5 and second['units_moved'] > .5
  runs[1].restore(saved)
  program.run_round([1])
  average.run(2)
  assert_close(runs[1].global_model()['params'],
               average.global_model()['params'])
  assert abs(runs[0].global_model()['params']['Dense_1']['kernel']
             - average.global_model()['params']['Dense_1']['kernel']
             ).max() > .01


@pytest.mark.parametrize('model, layers, error', [
    (MODEL, '', "layers must name the layers.*simple_cnn.*got ''. Its layers "
     'are Conv_0, Dense_0, Dense_1'),
    (MODEL, 'Conv_0 Dense_0', "got 'Conv_0 Dense_0'"),
    (MODEL, 'Conv_0 Dense_1 Dense_0',
     'with 5 outputs before Dense_1, .*; got Conv_0'),
    (mj.resnet18(3, None, norm='group'), '',
     'one kernel each.*got.*layer1_0/bn1'),
    (mj.lora(mj.mlp(3), 2), '', 'one kernel each.*got fc1, fc2'),
    (mj.freeze(mj.mlp(3, None), 'fc.*'), '', 'got out')])
def test_other_networks_are_refused(model, layers, error):
  shape = (8,) if model.frozen else (8, 8, 1) if model != MODEL else (4, 4, 1)
  variables = init(model, shape)
  with pytest.raises(UserError, match=error):
    hidden.chain(variables, layers)


@pytest.mark.long
def test_a_command_names_the_layers():
  config = Config(dataset='digits', algorithm='fedavg', partition='iid',
                  model='resnet18(norm=group)', aggregation='matched')
  with of_command(), pytest.raises(
      UserError, match='--aggregation.layers must list a chain'):
    mj.Simulation(build.federation(config))
