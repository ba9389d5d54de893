"""Networks of smaller widths, as masks of one network."""

import math
import pathlib

from flax import linen as nn
import jax
import jax.numpy as jnp
from models import heterofl_golden
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.algorithms import base
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.models import layers, networks, widths
from moon_jax.models.base import Options
from moon_jax.simulation import build
from support import tiny_federation
from support.papers import plain

SHAPE = (2, 20, 20, 3)  # which simple_cnn flattens as 2x2 pixels


class NarrowCNN(nn.Module):
  """simple_cnn of another width."""

  rate: float

  @nn.compact
  def __call__(self, x, mask, train):
    size = lambda count: math.ceil(self.rate * count)
    x = x.transpose(1, 2, 3, 0)
    for name, count in ('conv1', 6), ('conv2', 16):
      x = layers.PooledConv(size(count), 5, name=name)(x)
    x = x.reshape(-1, x.shape[-1]).T
    for name, count in ('fc1', 120), ('fc2', 84):
      x = nn.relu(layers.Dense(size(count), name=name)(x))
    return layers.head(x, Options(10, size(256)))


class NarrowResNet(nn.Module):
  """A residual network with a block in each stage, of another width."""

  rate: float
  is_bottleneck: bool

  @nn.compact
  def __call__(self, x, mask, train):
    size = lambda count: math.ceil(self.rate * count)
    x = layers.Conv(size(64), 3, padding=1, name='stem_conv')(x)
    x = nn.relu(layers.BatchNorm(name='stem_bn')(x, mask, train))
    for stage in 1, 2, 3, 4:
      x = networks.Block(
          size(2**(5 + stage)), 1 if stage == 1 else 2, self.is_bottleneck,
          'batch', layers.FLOAT32, name=f'layer{stage}_0')(x, mask, train)
    return layers.head(x.mean((1, 2)), Options(10, size(256)))


NETWORKS = {
    'simple_cnn': (mj.simple_cnn(10), NarrowCNN),
    **{name: (mj.from_flax(networks.ResNet(
        Options(10), (1, 1, 1, 1), is_bottleneck=is_bottleneck)),
              lambda rate, is_bottleneck=is_bottleneck: NarrowResNet(
                  rate, is_bottleneck))
       for name, is_bottleneck in (('resnet', False), ('bottleneck', True))}}


@pytest.mark.long
@pytest.mark.parametrize('name', ['simple_cnn', 'resnet', 'bottleneck'])
def test_a_masked_network_is_the_small_network(name):
  """Outputs, gradients and running statistics, and its size in bytes."""
  model, narrow = NETWORKS[name]
  small = mj.from_flax(narrow(.25))
  x = jax.random.normal(jax.random.key(1), SHAPE)
  variables, like = jax.jit(
      lambda key: (model.init(key, x), small.init(key, x)))(jax.random.key(0))
  algorithm = mj.heterofl((1., .25), scale=False)
  view = base.first_view(algorithm, variables)._replace(
      client_id=jnp.int32(1))
  masked = algorithm.start(view)
  sliced = compact(variables, variables, like)
  assert widths.num_bytes(variables, .25) == sum(
      x.nbytes for x in jax.tree.leaves(like))
  assert algorithm.upload_bytes(variables, {}).tolist() == [
      sum(x.nbytes for x in jax.tree.leaves(tree))
      for tree in (variables, like)]

  def trained(network, variables):
    def loss(params):
      outputs, after = network.apply(
          {**variables, 'params': params}, x, jnp.ones(len(x)), train=True)
      return jnp.sum(outputs.logits**2), (outputs.logits, after)
    (_, (logits, after)), grads = jax.value_and_grad(loss, has_aux=True)(
        variables['params'])
    return logits, {**after, 'params': grads}

  logits, after = jax.jit(lambda: trained(model, masked))()
  expected, small_after = jax.jit(lambda: trained(small, sliced))()
  np.testing.assert_allclose(logits, expected, atol=1e-4)
  for found, one in zip(
      jax.tree.leaves(compact(after, variables, like)),
      jax.tree.leaves(small_after)):
    np.testing.assert_allclose(
        found, one, atol=1e-4 * max(1, np.abs(one).max()))


@pytest.mark.parametrize('name', ['resnet', 'bottleneck'])
def test_slices_of_residual_networks_fit_together(name):
  model, narrow = NETWORKS[name]
  shapes = lambda network: jax.eval_shape(
      network.init, jax.random.key(0), jnp.zeros(SHAPE))
  variables, like = shapes(model), shapes(mj.from_flax(narrow(.25)))
  found = [tuple(size // 4 if count > 0 else size
                 for size, count in zip(x.shape, axes)) for x, axes in zip(
                     jax.tree.leaves(variables), widths.units(variables))]
  assert found == [x.shape for x in jax.tree.leaves(like)]


def compact(tree, variables, like):
  """Returns the slice of arrays like a small network's."""
  leaves = []
  for x, axes, small in zip(jax.tree.leaves(tree), widths.units(variables),
                            jax.tree.leaves(like)):
    for axis, units in enumerate(axes):
      if units > 0:
        at = np.flatnonzero(np.arange(x.shape[axis]) % units
                            < math.ceil(units / 4))
        x = jnp.take(x, at, axis)
    assert x.shape == small.shape
    leaves.append(x)
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


@pytest.mark.parametrize('algorithm', [
    mj.heterofl((1., 1.), masked=False),
    pytest.param(mj.fedrolex((1.,), masked=False), marks=pytest.mark.long),
    mj.fjord((1.,))], ids=['heterofl', 'fedrolex', 'fjord'])
def test_with_one_width_it_is_fedavg_to_the_bit(algorithm):
  options = {'momentum': .5}
  found, expected = (plain.simulated(x, plain.SOME, **options).rounds
                     for x in (algorithm, mj.fedavg()))
  for w, v in zip(found, expected, strict=True):
    for name in v:
      np.testing.assert_array_equal(w[name], v[name])


class ReleasedNetwork(nn.Module):
  """The network of HeteroFL's released code, without normalization."""

  @nn.compact
  def __call__(self, x):
    first, second = heterofl_golden.HIDDEN
    x = nn.relu(nn.Conv(first, (3, 3), name='conv1')(x))
    x = nn.relu(nn.Conv(second, (3, 3), name='conv2')(
        nn.max_pool(x, (2, 2), (2, 2))))
    return nn.Dense(heterofl_golden.CLASSES, name='out')(x.mean((1, 2)))


@pytest.mark.long
def test_heterofl_equals_its_released_network():
  images, labels, clients = heterofl_golden.problem()
  simulation = mj.Simulation(mj.Federation(
      data=mj.Dataset('tiny', images, labels, images, labels, ('a', 'b', 'c'),
                      mean=(0.,), std=(1.,)),
      clients=clients, model=mj.from_flax(ReleasedNetwork()),
      algorithm=mj.heterofl(heterofl_golden.RATES, layers='conv1 conv2 out'),
      init_variables={'params': heterofl_golden.initial()},
      weighting='uniform', shuffle=False, gradient_clip=1.,
      optimizer=f'sgd(momentum={heterofl_golden.MOMENTUM}, '
      f'weight_decay={heterofl_golden.DECAY})',
      local_epochs=heterofl_golden.EPOCHS, batch_size=heterofl_golden.BATCH,
      learning_rate=heterofl_golden.LEARNING_RATE))
  golden = np.load(
      pathlib.Path(__file__).with_name('heterofl_golden.npz'))
  for t in range(heterofl_golden.ROUNDS):
    simulation.run_round()
    for layer, arrays in simulation.global_model()['params'].items():
      for kind, w in arrays.items():
        np.testing.assert_allclose(w, golden[f'{t}_{layer}_{kind}'], atol=1e-5)


def test_rates_are_drawn_every_round():
  algorithm = mj.heterofl((1., .4), assignment='dynamic')
  view = base.first_view(algorithm, plain.as_variables(plain.INITIAL), 3)
  found = [int((algorithm.start(view._replace(key=jax.random.key(i)))
                ['params']['fc1']['bias'] != 0).sum()) for i in range(12)]
  assert {*found} == {5, 2}


class Normalized(nn.Module):
  """A network with batch norm."""

  @nn.compact
  def __call__(self, x, train):
    x = nn.BatchNorm(use_running_average=not train, name='bn')(
        nn.Dense(4, name='fc1')(x))
    return nn.Dense(2, name='out')(nn.relu(x))


def test_units_beyond_a_step_of_fjord_keep_their_running_statistics():
  """Those of the step have the same ones as in the full network."""
  model, algorithm = mj.from_flax(Normalized()), mj.fjord(
      (1., .5), layers='fc1 bn out')
  rng = np.random.default_rng(0)
  batch = base.Batch(jnp.float32(rng.normal(size=(8, 3))), jnp.arange(8) % 2,
                     jnp.ones(8))
  variables = model.init(jax.random.key(0), batch.inputs)
  variables['batch_stats'] = jax.tree.map(
      lambda x: jnp.float32(rng.uniform(1, 2, x.shape)),
      variables['batch_stats'])
  view = base.first_view(algorithm, variables)
  _, full = model.apply(variables, batch.inputs, batch.mask, train=True)

  @jax.jit
  def after(key):
    _, aux = algorithm.loss(
        model, variables, batch._replace(key=key), view)
    return aux.variables['batch_stats']['bn']

  sizes = set()
  for i in range(8):
    found = after(jax.random.key(i))
    is_new_U = np.array(found['mean'] != variables['batch_stats']['bn']['mean'])
    sizes.add(int(is_new_U.sum()))
    for name, x_U in found.items():
      old_U, new_U = (
          tree['batch_stats']['bn'][name] for tree in (variables, full))
      np.testing.assert_allclose(
          x_U, np.where(np.arange(4) < is_new_U.sum(), new_U, old_U), 1e-5)
  assert sizes == {2, 4}


class Own(nn.Module):
  """A network with other names, batch norm in a block and a flattened image."""

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.BatchNorm(use_running_average=True, name='first')(
        nn.Conv(4, (3, 3), name='begin')(x)))
    x = nn.relu(nn.Dense(7, name='middle')(x.reshape(len(x), -1)))
    return nn.Dense(3, name='end')(x)


OWN = jax.eval_shape(Own().init, jax.random.key(0), jnp.zeros((1, 2, 2, 1)))


def test_own_networks_name_their_layers():
  found = jax.tree.unflatten(jax.tree.structure(OWN), [
      np.array(x) for x in widths.units(OWN, 'begin middle end')])
  params = found['params']
  assert jax.tree.map(list, found) == {
      'batch_stats': {'first': {'mean': [4], 'var': [4]}},
      'params': {
          'begin': {'bias': [4], 'kernel': [0, 0, 0, 4]},
          'first': {'bias': [4], 'scale': [4]},
          'middle': {'bias': [7], 'kernel': [4, 7]},
          'end': {'bias': [-1], 'kernel': [7, -1]}}}, params
  is_scaled = lambda names: jax.tree.unflatten(
      jax.tree.structure(OWN), widths.scaled(OWN, names))['params']
  assert is_scaled('begin middle end')['begin']['kernel']
  normalized = is_scaled('begin first middle end')
  assert not normalized['begin']['kernel'] and normalized['middle']['bias']
  assert not normalized['end']['kernel']


@pytest.mark.parametrize('names, message', [
    ('', r'layers must name the layers of a network that is not one of .*; '
     r"got ''. Its layers are begin, end, first, middle"),
    ('begin middle', 'must name the layers'),
    ('begin middle end other', 'must name the layers'),
    ('middle begin end', 'must list a layer with 1 outputs before begin'),
])
def test_other_networks_are_refused(names, message):
  with pytest.raises(UserError, match=message):
    widths.units(OWN, names)


@pytest.mark.parametrize('make', [mj.heterofl, mj.fedrolex, mj.fjord])
def test_methods_get_the_layers_of_a_network(make):
  with pytest.raises(UserError, match="must name the layers .*; got 'other'"):
    mj.Simulation(tiny_federation.make(algorithm=make(layers='other')))


def test_the_global_model_has_the_largest_width():
  with pytest.raises(UserError, match=r'rates must have 1, .*; got \(0.5, 0.2'):
    mj.heterofl((.5, .25))
  with pytest.raises(UserError, match='rates must be finite numbers, such as'):
    mj.fjord(('wide',))
  with pytest.raises(UserError, match='cannot go around heterofl, since'):
    mj.with_fednova(mj.heterofl())


def test_narrow_networks_are_evaluated_beside_the_global_model():
  federation = tiny_federation.make(
      algorithm=mj.heterofl((1., .25)), metrics={'logits': lambda logits,
                                                 labels: logits})
  simulation = mj.Simulation(federation)
  record, = simulation.rounds(1)
  variables = jax.tree.map(np.array, simulation.global_model())
  data, model = federation.data, federation.model

  def evaluated(variables):
    outputs, _ = model.apply(variables, jnp.asarray(data.test_inputs),
                             jnp.ones(len(data.test_labels)), train=False)
    return outputs.logits, np.mean(
        outputs.logits.argmax(1) == data.test_labels)

  logits, accuracy = evaluated(variables)
  np.testing.assert_allclose(record.metrics['logits'], logits, atol=1e-5)
  assert record.test_accuracy == pytest.approx(accuracy)
  for layer, units in ('fc1', 200), ('fc2', 200):
    variables['params'][layer]['kernel'][:, units // 4:] = 0
    variables['params'][layer]['bias'][units // 4:] = 0
  assert record.metrics['test_accuracy_width_0.25'] == pytest.approx(
      evaluated(variables)[1])
  assert not any(name.endswith('_std') for name in record.metrics)
  assert simulation.bytes_per_round() == 2 * sum(  # of the three clients
      widths.num_bytes(simulation.global_model(), rate)
      for rate in (1., .25, 1.))


def test_clients_with_narrow_networks_send_sooner(tmp_path):
  """With a clock whose links are all that takes time."""
  file = tmp_path / 'clock.csv'
  file.write_text('seconds_per_example,download,upload\n'
                  + '1e-9,1e6,1e6\n' * 4)
  made = build.federation(Config(
      dataset='digits', model='mlp', num_clients=4, num_rounds=2,
      algorithm='heterofl(rates=(1, 0.25))', clock=f'file(path={file})',
      rounds='synchronous(deadline=0.5)'))
  assert made.rounds.timeline.cohorts == [[1, 3]] * 2
