"""Convolutions, without and with pooling, compared with JAX's."""

import functools
import itertools

from flax import linen as nn
from flax import nnx
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.models import convolution, pooled_conv, user
from moon_jax.models import nnx as nnx_lib
from moon_jax.models.arithmetic import Arithmetic

random = np.random.RandomState(0)


def normal(*shape):
  return jnp.asarray(random.standard_normal(shape), jnp.float32)


def native_conv(x, kernel, strides=(1, 1), padding='VALID'):
  return lax.conv_general_dilated(
      x, kernel, strides, padding, dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      precision='highest')


def conv_then_pool(x_HWCB, kernel):
  y = native_conv(x_HWCB.transpose(3, 0, 1, 2), kernel)
  y = lax.reduce_window(
      y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')
  return y.transpose(1, 2, 3, 0)


def assert_same(ours, theirs, *args, rtol=1e-4, atol=1e-3):
  """Compares the results and the gradients of two functions."""
  shape = jax.eval_shape(ours, *args)
  cotangent = normal(*shape.shape)

  @jax.jit
  def both(args):
    results = []
    for function in ours, theirs:
      y, vjp = jax.vjp(function, *args)
      results.append((y, vjp(cotangent)))
    return results

  actual, expected = both(args)
  assert shape.dtype == expected[0].dtype
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, atol=atol, rtol=rtol), actual, expected)


@pytest.mark.parametrize('name, batch', [
    ('im2col', 1), ('im2col', 3), ('im2col', 41), ('native', 3)])
@pytest.mark.parametrize('size, stride, padding', [
    (3, 1, 1), (3, 2, 1), (5, 1, 0), (5, 3, 2), (2, 2, 0), (1, 1, 0),
    (1, 2, 0)])
def test_convolutions_are_those_of_lax(name, batch, size, stride, padding):
  """The direct gradient of 41 images of 10 x 9 pixels takes several steps."""
  arithmetic = Arithmetic(convolution=name)
  assert_same(
      lambda x, kernel: convolution.conv(
          x, kernel, stride, padding, arithmetic),
      lambda x, kernel: native_conv(
          x, kernel, (stride, stride), [(padding, padding)] * 2),
      normal(batch, 10, 9, 4), normal(size, size, 4, 6))


@pytest.mark.parametrize('stride', [1, 2])
def test_direct_conv_for_lanes_and_further_derivatives(stride):
  """Gradients of a kernel per lane, and the gradient of their norm."""
  x, kernel = normal(3, 2, 7, 6, 4), normal(3, 3, 3, 4, 5)

  def penalty(conv, x, kernel):
    grads = jax.grad(lambda x, kernel: jnp.sum(jnp.sin(jax.vmap(conv)(
        x, kernel))), (0, 1))(x, kernel)
    return sum(jnp.sum(g**2) for g in grads), grads

  results = [jax.jit(jax.value_and_grad(functools.partial(
      penalty, conv), (0, 1), has_aux=True))(x, kernel) for conv in (
          lambda x, kernel: convolution.direct(x, kernel, stride, 1),
          lambda x, kernel: native_conv(
              x, kernel, (stride, stride), [(1, 1)] * 2))]
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=1e-4, atol=1e-3 * float(jnp.abs(b).max())), *results)


def test_a_kernel_per_client():
  """No program has a grouped convolution, which is slow on CPUs."""
  x, w = normal(4, 2, 10, 10, 3), normal(4, 5, 5, 3, 6)
  for conv in convolution.direct, lambda x, w: mj.conv_general_dilated(
      x, w, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')):
    jitted = jax.jit(jax.vmap(conv))
    np.testing.assert_allclose(
        jitted(x, w), jnp.stack([native_conv(a, b) for a, b in zip(x, w)]),
        atol=1e-4)
    text = jitted.lower(x, w).as_text()
    assert 'feature_group_count = 4' not in text
    grouped = jax.jit(jax.vmap(native_conv)).lower(x, w).as_text()
    assert 'feature_group_count = 4' in grouped


def test_im2col_equals_native():
  """Compares values and gradients, with a kernel per client."""
  x, kernel = normal(3, 2, 8, 8, 20), normal(3, 3, 3, 20, 4)

  def value_and_grads(name):
    conv = jax.vmap(lambda x, kernel: convolution.conv(
        x, kernel, 2, 1, Arithmetic('float32', 'highest', name)))
    y, vjp = jax.vjp(conv, x, kernel)
    return y, *vjp(y)

  for native, im2col in zip(*(
      jax.jit(value_and_grads, static_argnums=0)(name)
      for name in ('native', 'im2col'))):
    scale = float(jnp.abs(im2col).max())
    np.testing.assert_allclose(native, im2col, atol=1e-6 * scale)


# Convolutions with pooling.

SHAPES = {
    'first layer': ((32, 32, 3, 4), (5, 5, 3, 6)),
    'second layer': ((14, 14, 6, 4), (5, 5, 6, 16)),
    'an odd row and column are ignored': ((10, 11, 2, 3), (5, 5, 2, 4)),
    'even kernels': ((16, 17, 5, 2), (4, 4, 5, 3)),
    'kernels of one pixel': ((5, 4, 3, 2), (1, 1, 3, 3)),
    'one window': ((6, 7, 1, 2), (5, 5, 1, 1)),
}


@pytest.mark.parametrize('x, kernel', SHAPES.values(), ids=SHAPES)
def test_equals_convolution_then_pooling(x, kernel):
  assert_same(pooled_conv.conv_max_pool, conv_then_pool, normal(*x),
              normal(*kernel), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize('name', ['second layer', 'even kernels'])
def test_accelerators_give_the_same_result(name, accelerator):
  test_equals_convolution_then_pooling(*SHAPES[name])


def test_the_first_of_equal_outputs_gets_the_gradient():
  """As in PyTorch's max_pool2d, whereas jnp.maximum splits the gradient."""
  kernel = jnp.ones((1, 1, 1, 1))
  grad_fn = jax.jit(jax.grad(
      lambda x: pooled_conv.conv_max_pool(x, kernel).sum()))
  for values in itertools.product((0., 1.), repeat=4):
    image = np.array(values, np.float32).reshape(2, 2)
    expected = np.zeros(4)
    expected[np.argmax(image)] = 1
    np.testing.assert_array_equal(
        grad_fn(jnp.asarray(image)[..., None, None])[..., 0, 0],
        expected.reshape(2, 2))


# Flax modules, compared with Flax.


@pytest.mark.parametrize('shape, options, is_fast', [
    ((2, 8, 9, 3), {'kernel_size': (3, 2), 'padding': 'VALID'}, True),
    ((2, 8, 9, 3), {'kernel_size': (2, 3), 'strides': (2, 1)}, True),
    ((2, 8, 9, 3), {'kernel_size': (3, 3), 'strides': 2,
                    'padding': ((2, 0), (1, 3))}, True),
    ((2, 8, 9, 3), {'kernel_size': (3, 3), 'padding': 'CIRCULAR'}, True),
    ((2, 8, 9, 3), {'kernel_size': (3, 3), 'kernel_dilation': 2}, False),
    ((2, 8, 9, 4), {'kernel_size': (3, 3), 'feature_group_count': 2}, False),
    ((2, 8, 4), {'kernel_size': (3,)}, False),
])
def test_convolutions_of_flax_modules(shape, options, is_fast, monkeypatch):
  calls = []
  im2col = convolution.im2col
  monkeypatch.setattr(convolution, 'im2col',
                      lambda *args: calls.append(args) or im2col(*args))
  flax = nn.Conv(6, **options, precision='highest')
  ours = nn.Conv(6, **options, conv_general_dilated=mj.conv_general_dilated)
  x = normal(*shape)
  variables = flax.init(jax.random.key(0), x)
  assert_same(ours.apply, flax.apply, variables, x)
  assert bool(calls) == is_fast


@pytest.mark.parametrize('args', [
    ((2, 2), (2, 2)), ((3, 2), (3, 2)), ((3, 3), (2, 2)), ((2, 2),),
    ((2, 3), (2, 1), 'SAME'), ((2, 2), (2, 2), ((1, 0), (2, 1)))])
def test_max_pooling_of_flax_modules(args):
  theirs = lambda x: nn.max_pool(x, *args)
  ours = mj.fast_on_cpus(theirs)
  x = jnp.round(normal(6, 7, 9, 4))  # many equal values
  assert_same(ours, theirs, x)
  with_nan = x.at[0, 3, 3].set(jnp.nan)
  np.testing.assert_array_equal(
      jax.jit(ours)(with_nan), jax.jit(theirs)(with_nan))


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


def gradient_of(model):
  """Returns a function of variables: the loss of a batch and its gradient."""
  x = jax.random.normal(jax.random.key(1), (2, 9, 8, 3))
  return jax.jit(jax.value_and_grad(lambda variables: jnp.sum(model.apply(
      variables, x, jnp.ones(len(x)), train=True)[0].logits**2)))


@pytest.mark.parametrize('make', [
    lambda: mj.from_flax(Net()),
    lambda: mj.from_nnx(lambda rngs: NnxNet(rngs))])
def test_modules_are_fast_on_cpus(make, monkeypatch):
  slow = ('stablehlo.convolution', 'reduce_window', 'select_and_scatter')
  ours, x = make(), jnp.zeros((1, 9, 8, 3))
  for module in user, nnx_lib:
    monkeypatch.setattr(module, 'fast_on_cpus', lambda apply: apply)
  theirs = make()
  variables = ours.init(jax.random.key(0), x)
  assert slow[0] in gradient_of(theirs).lower(variables).as_text()
  if jax.default_backend() == 'cpu':
    program = gradient_of(ours).lower(variables).as_text()
    assert not any(name in program for name in slow)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=1e-5, atol=1e-6),
               gradient_of(ours)(variables), gradient_of(theirs)(variables))


def test_accelerators_keep_their_convolutions(accelerator):
  model = mj.from_flax(Net())
  variables = model.init(jax.random.key(0), jnp.zeros((1, 9, 8, 3)))
  program = gradient_of(model).lower(variables).as_text()
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
      jax.jit(transform(mj.fast_on_cpus(apply)))(.1),
      jax.jit(transform(apply))(.1), rtol=1e-5)


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
