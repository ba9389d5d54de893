"""Own networks with Flax's convolutions and pooling, compared with Flax."""

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj


class Net(nn.Module):

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Conv(4, (3, 3), strides=2)(x))
    x = nn.max_pool(x, (2, 2), (1, 1), 'SAME')
    return nn.Dense(2)(jnp.mean(x, (1, 2)))


class NnxNet(nnx.Module):

  def __init__(self, rngs):
    self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
    self.out = nnx.Linear(4, 2, rngs=rngs)

  def __call__(self, x):
    return self.out(jnp.max(jax.jit(self.conv)(x), (1, 2)))


def gradient_of(apply):
  """The loss of a batch of ones and its gradient, with the network's `apply`"""
  x = jax.random.normal(jax.random.key(1), (2, 9, 8, 3))
  return jax.value_and_grad(lambda variables: jnp.sum(apply(variables, x)**2))


def logits_of(model):
  return lambda variables, x: model.apply(
      variables, x, jnp.ones(len(x)), train=True)[0].logits


def test_flax_modules():
  net, x = Net(), jnp.zeros((1, 9, 8, 3))
  variables = net.init(jax.random.key(0), x)
  ours = jax.jit(gradient_of(logits_of(mj.from_flax(net))))
  theirs = jax.jit(gradient_of(net.apply))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5,
                                                       atol=1e-6),
               ours(variables), theirs(variables))
  slow = ('stablehlo.convolution', 'reduce_window', 'select_and_scatter')
  program = theirs.lower(variables).as_text()
  assert all(name in program for name in slow[::2])
  if jax.default_backend() == 'cpu':
    program = ours.lower(variables).as_text()
    assert not any(name in program for name in slow)


def test_nnx_modules():
  model = mj.from_nnx(lambda rngs: NnxNet(rngs))
  variables = model.init(jax.random.key(0), jnp.zeros((1, 9, 8, 3)))
  ours = gradient_of(logits_of(model))
  kernel = variables['params']['conv/kernel']

  def theirs(variables, x):
    params = variables['params']
    y = jax.lax.conv_general_dilated(
        x, params['conv/kernel'], (1, 1), 'SAME',
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
    y = jnp.max(y + params['conv/bias'][None, None, None], (1, 2))
    return y @ params['out/kernel'] + params['out/bias'][None]

  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5,
                                                       atol=1e-6),
               ours(variables), gradient_of(theirs)(variables))
  assert kernel.shape == (3, 3, 3, 4)
  if jax.default_backend() == 'cpu':
    assert 'convolution' not in jax.jit(ours).lower(variables).as_text()


def test_accelerators_keep_their_convolutions(accelerator):
  net = Net()
  variables = net.init(jax.random.key(0), jnp.zeros((1, 9, 8, 3)))
  program = jax.jit(gradient_of(logits_of(mj.from_flax(net)))).lower(
      variables).as_text()
  assert 'stablehlo.convolution' in program
  assert 'select_and_scatter' in program


@pytest.mark.parametrize('transform', [jax.jacfwd, jax.hessian])
def test_forward_derivatives(transform):
  """An algorithm may need them, and functions with own gradients lack them."""
  kernel = jnp.arange(1., 10.).reshape(3, 3, 1, 1)
  x = jax.random.normal(jax.random.key(0), (1, 4, 4, 1))

  def apply(scale):
    y = nn.max_pool(jax.lax.conv_general_dilated(
        x, scale * kernel, (1, 1), 'SAME',
        dimension_numbers=('NHWC', 'HWIO', 'NHWC')), (2, 2))
    return jnp.sum(jnp.tanh(y))

  np.testing.assert_allclose(
      transform(mj.fast_on_cpus(apply))(.1), transform(apply)(.1), rtol=1e-5)


@pytest.mark.parametrize('apply', [
    lambda x: jax.lax.reduce_window(  # of integers
        jnp.int32(x), 0, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID'),
    lambda x: nn.max_pool(x, x.shape[1:3]),  # a large window
    lambda x: jax.lax.conv_general_dilated(
        x, jnp.ones((2, 2, 1, 1)), (1, 1), ((-1, 0), (0, -2)),
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'))])
def test_unusual_operations(apply):
  x = jnp.arange(200.).reshape(2, 10, 10, 1)
  np.testing.assert_array_equal(mj.fast_on_cpus(apply)(x), apply(x))


def test_other_functions_stay_as_they_are():
  """What has no slow operation is called, not evaluated again."""
  calls = []

  def apply(x, train):
    calls.append(train)
    return x + train

  np.testing.assert_array_equal(mj.fast_on_cpus(apply)(jnp.ones(2), train=1),
                                [2, 2])
  assert calls == [1, 1]
