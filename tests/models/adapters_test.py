"""Networks of which a part trains: their state, and what is drawn for them.

tests/tasks_test.py compares their outputs and gradients with merged weights.
"""

import functools
import itertools

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from support import networks, tiny_federation


@pytest.mark.parametrize('partial', [
    lambda *args, **kwargs: mj.lora(*args, rank=2, **kwargs), mj.freeze])
def test_batch_statistics_are_those_of_the_whole_network(partial):
  """Adapters begin with 0, so the first step has the same activations."""
  whole = mj.from_flax(networks.Linen())
  x, mask_B = jax.random.normal(jax.random.key(0), (6, 4)), jnp.ones(6)
  variables = jax.jit(whole.init)(jax.random.key(1), x)
  model = partial(whole, where='dense', variables=variables)
  key = jax.random.key(2)
  before = jax.jit(model.init)(jax.random.key(3), x)
  (_, found), (_, expected) = (
      jax.jit(functools.partial(network.apply, train=True))(
          given, x, mask_B, key=key)
      for network, given in ((model, before), (whole, variables)))
  jax.tree.map(  # two programs, so up to rounding
      functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8),
      found['batch_stats'], expected['batch_stats'])
  moved = jax.tree.map(lambda old, new: bool(jnp.any(old != new)),
                       before['batch_stats'], found['batch_stats'])
  assert all(jax.tree.leaves(moved))
  assert found['params'].keys() == before['params'].keys()
  _, same = jax.jit(functools.partial(model.apply, train=False))(
      found, x, mask_B)
  jax.tree.map(np.testing.assert_array_equal, same['batch_stats'],
               found['batch_stats'])


def test_no_two_arrays_of_a_network_are_drawn_alike():
  """Layers of equal sizes, and their adapters."""
  plain = mj.transformer(7, width=8, num_layers=2, num_heads=2)
  tokens = jnp.zeros((1, 5), jnp.int32)
  for model in plain, mj.lora(plain, 2):
    drawn = [np.asarray(x).ravel() for x in jax.tree.leaves(
        jax.jit(model.init)(jax.random.key(0), tokens)['params'])]
    drawn = [x for x in drawn if x.std()]  # not zeros or ones
    assert len(drawn) > 8
    for a, b in itertools.combinations(drawn, 2):
      assert not np.array_equal(a[:8], b[:8])


def test_what_trains_besides_adapters_is_there():
  """Heads have many names, and one that is wrong would stay as it is drawn."""
  base, inputs = mj.mlp(10, projection_dim=None), jnp.zeros((1, 8, 8, 1))
  init = lambda **given: jax.eval_shape(mj.lora(base, 2, '^fc', **given).init,
                                        jax.random.key(0), inputs)['params']
  assert {*init()} == {'fc1', 'fc2'} and 'out' in init(train='out')
  with pytest.raises(mj.UserError, match='^train must select some parameters '
                     'of .*out/kernel; got none'):
    init(train='head')
  with pytest.raises(mj.UserError, match='^head must name layers that train '
                     'without adapters: out; got classifier'):
    mj.Simulation(tiny_federation.make(
        model=mj.lora(mj.mlp(2, projection_dim=None), 2, '^fc', train='out'),
        algorithm=mj.fedsalora('classifier')))


class NormLinen(nn.Module):

  @nn.compact
  def __call__(self, x, train):
    h = nn.BatchNorm(use_running_average=not train, name='norm')(
        nn.Dense(6, name='fc')(x))
    return nn.Dense(2, name='out')(nn.tanh(h))


class NormNnx(nnx.Module):

  def __init__(self, rngs):
    self.fc = nnx.Linear(4, 6, rngs=rngs)
    self.norm = nnx.BatchNorm(6, rngs=rngs)
    self.out = nnx.Linear(6, 2, rngs=rngs)

  def __call__(self, x):
    return self.out(nnx.tanh(self.norm(self.fc(x))))


@pytest.mark.long
def test_nnx_and_linen_train_to_the_same_bits():
  """Adapters, batch norm, a head that trains and frozen weights."""
  found = []
  weights = None
  for model, state in ((mj.from_flax(NormLinen()), 'batch_stats'),
                       (mj.from_nnx(NormNnx), 'state')):
    variables = model.init(jax.random.key(0), jnp.ones((1, 4)))
    weights = weights or variables['params']
    simulation = mj.Simulation(tiny_federation.make(
        model=mj.lora(model, 2, 'fc', train='norm|out', variables={
            **variables, 'params': weights}),
        algorithm=mj.fedper('out'), batch_size=3, local_epochs=2))
    losses = [(r.train_loss, r.test_loss) for r in simulation.run(2)]
    found.append((simulation.global_model()['params'],
                  simulation.global_model()[state],
                  simulation.state_on_host().clients['params'], losses))
  jax.tree.map(np.testing.assert_array_equal, *found)
  assert found[0][0].keys() == {'fc', 'norm', 'out'}


class Deep(nnx.Module):
  """Three layers whose parameters nnx.vmap stacks, and one in a list."""

  def __init__(self, rngs):
    make = nnx.vmap(lambda rngs: nnx.Linear(4, 4, rngs=rngs), axis_size=3)
    self.blocks = nnx.split_rngs(splits=3)(make)(rngs)
    self.attention = nnx.List([nnx.MultiHeadAttention(
        2, 4, decode=False, rngs=rngs)])

  def __call__(self, x):
    run = nnx.scan(lambda x, layer: nnx.tanh(layer(x)),
                   in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    return self.attention[0](run(x, self.blocks)[:, None])[:, 0]


def test_layers_of_nnx_have_adapters_wherever_they_are():
  """Stacked, in lists, and with several axes: equal to merged weights."""
  base, x = mj.from_nnx(Deep), jax.random.normal(jax.random.key(0), (5, 4))
  variables = base.init(jax.random.key(1), x)
  model = mj.lora(base, 2, 'blocks|query|out', alpha=3., variables=variables)
  params = jax.tree.map(
      lambda w: w + .1, model.init(jax.random.key(2), x)['params'])
  assert params['blocks']['lora_a'].shape == (3, 4, 2)
  assert {*params['attention']['0']} == {'query', 'out'}
  full = jax.tree.map(lambda w: w, variables['params'])
  for layer, own in ((full['blocks'], params['blocks']), *(
      (full['attention']['0'][name], own)
      for name, own in params['attention']['0'].items())):
    layer['kernel'] += 1.5 * jnp.matmul(
        own['lora_a'], own['lora_b']).reshape(layer['kernel'].shape)
  found, expected = (
      jax.jit(functools.partial(network.apply, train=False))(
          {'params': w}, x, jnp.ones(5))[0].logits
      for network, w in ((model, params), (base, full)))
  np.testing.assert_allclose(found, expected, atol=1e-5)
