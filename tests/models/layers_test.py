"""Layers: initialization, normalization and accumulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import layers
from moon_jax.models.arithmetic import Arithmetic


@pytest.mark.parametrize('layer, shape, fan_in', [
    (layers.Dense(4000), (1, 50), 50),
    (layers.PooledConv(300, 5), (8, 8, 3, 1), 75),
])
def test_weights_are_uniform_in_one_over_sqrt_fan_in(layer, shape, fan_in):
  params = jax.jit(layer.init)(jax.random.key(0), np.zeros(shape, 'float32'))[
      'params']
  bound = fan_in ** -.5
  for weights in (params['kernel'], params['bias']):
    assert .98 * bound < np.abs(weights).max() <= bound
    # A uniform variable in +-a has the standard deviation a / sqrt(3).
    np.testing.assert_allclose(np.std(weights), bound / 3 ** .5, rtol=.1)


@pytest.mark.parametrize('norm', ['batch', 'group'])
def test_padding_does_not_affect_normalization(norm):
  """Also checks batches in which all rows are padding."""
  random = np.random.RandomState(0)
  real = random.randn(5, 4, 4, 64) * 3 + 1
  garbage = random.randn(3, 4, 4, 64) * 1e4
  layer = layers.NORMS[norm]()
  variables = layer.init(
      jax.random.key(0), jnp.zeros((1, 4, 4, 64)), jnp.ones(1), False)
  jitted = jax.jit(lambda x, mask: layer.apply(
      variables, x, mask, True, mutable='batch_stats'))
  apply = lambda x, mask: jitted(np.float32(x), np.float32(mask))

  alone, state = apply(real, np.ones(5))
  padded, padded_state = apply(
      np.concatenate([real, garbage]), [1] * 5 + [0] * 3)
  np.testing.assert_allclose(padded[:5], alone, atol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
               state, padded_state)
  if norm == 'batch':
    mean, var = real.mean((0, 1, 2)), real.var((0, 1, 2))
    np.testing.assert_allclose(
        alone, (real - mean) / np.sqrt(var + 1e-5), atol=1e-5)
    np.testing.assert_allclose(
        state['batch_stats']['mean'], .1 * mean, atol=1e-5)
    np.testing.assert_allclose(
        state['batch_stats']['var'], .9 + .1 * var * 80 / 79, rtol=1e-5)
  nothing, _ = apply(garbage, np.zeros(3))
  assert np.isfinite(nothing).all()


@pytest.mark.parametrize('module, shape', [
    (layers.Dense(4, Arithmetic('bfloat16')), (1, 4096)),
    (layers.Conv(4, 4, Arithmetic('bfloat16')), (1, 4, 4, 256))])
def test_sums_of_bfloat16_accumulate_in_float32(module, shape):
  """Accumulated in bfloat16, a sum of 4,096 ones would stop at 256."""
  x = jnp.ones(shape)
  variables = jax.tree.map(
      lambda w: np.ones(w.shape, w.dtype),
      jax.eval_shape(module.init, jax.random.key(0), x))
  assert all(w.dtype == jnp.float32 for w in jax.tree.leaves(variables))
  total = jax.jit(module.apply)(variables, x).astype(jnp.float32)
  np.testing.assert_allclose(total, 4096, rtol=.01)
  many = jnp.ones((4096, *shape[1:]))
  grads = jax.jit(jax.grad(lambda v: module.apply(v, many).astype(
      jnp.float32).sum()))(variables)
  jax.tree.map(lambda g: np.testing.assert_allclose(g, 4096, rtol=.01), grads)


def test_kernels_without_bias_are_normal_by_fan_out():
  layer = layers.Conv(64, 3, padding=1)
  kernel = layer.init(jax.random.key(0), jnp.zeros((1, 8, 8, 16)))['params'][
      'kernel']
  deviation = np.sqrt(2 / (3 * 3 * 64))  # by fan in it would be twice that
  assert abs(float(kernel.std()) / deviation - 1) < .03
  assert abs(float(kernel.max())) > 3 * deviation  # not uniform
