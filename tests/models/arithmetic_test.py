"""Precisions of products, in the programs that GPUs run."""

import functools
import re

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import models
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.models import arithmetic
from moon_jax.models.arithmetic import Arithmetic
from moon_jax.simulation import build, round_spec

TYPES = {'tf32': ('tf32', '1'), 'tf32x3': ('tf32', '3'),
         'bfloat16': ('bf16', '1')}


def normal(seed, *shape):
  return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


@functools.cache
def products(name, precision, convolution):
  """Returns the StableHLO products of a network's gradient on a GPU."""
  model = models.make(name, 10, 16, precision=precision,
                      convolution=convolution)
  images = jnp.zeros((2, 16, 16, 3))
  variables = jax.eval_shape(model.init, jax.random.key(0), images)

  def loss(params, variables, images):
    outputs, _ = model.apply(
        {**variables, 'params': params}, images, jnp.ones(2), True)
    return outputs.logits.sum() + outputs.projection.sum()

  text = jax.jit(jax.grad(loss)).trace(
      variables['params'], variables, images).lower(
          lowering_platforms=('cuda',)).as_text()
  return [line for line in text.splitlines()
          if re.search(r'stablehlo\.(dot_general|convolution)', line)]


# Products with the one-hot offsets of `pooled_conv`.
ONE_HOT = re.compile(r'tensor<[0-9]+x25xf32>|x25xf32>')


@pytest.mark.parametrize('name, precision', [
    ('mlp', 'tf32'), pytest.param('resnet18', 'tf32x3', marks=pytest.mark.long),
    *[('simple_cnn', precision) for precision in TYPES]])
def test_every_product_on_a_gpu_has_the_precision(name, precision):
  """Except products with one-hot matrices, which only move numbers."""
  lines = [line for line in products(name, precision, 'im2col')
           if not ONE_HOT.search(line)]
  assert len(lines) == len([
      line for line in products(name, 'highest', 'im2col')
      if not ONE_HOT.search(line)]) >= 10
  for line in lines:
    match = re.search(r'lhs_precision_type = (\w+), .*accumulation_type = (\w+)'
                      r', .*num_primitive_operations = (\d)', line)
    kind, count = TYPES[precision]
    assert match and match.groups() == (kind, 'f32', count), line


@pytest.mark.parametrize('precision, xla_precision', [
    ('highest', 'HIGHEST'), ('tf32', 'DEFAULT')])
def test_native_convolutions_on_a_gpu(precision, xla_precision):
  lines = [line for line in products('resnet18', precision, 'native')
           if 'convolution' in line]
  assert len(lines) >= 3 * 20 - 1  # images have no gradient
  config = f'precision_config = [#stablehlo<precision {xla_precision}>'
  for line in lines:
    assert config in line, line


@pytest.mark.parametrize('precision', arithmetic.PRECISIONS)
def test_products_on_cpus_are_float32(precision):
  """Equal to the bits of jnp.dot, forward and backward: no setting is lost."""
  a, b, g = normal(0, 30, 70), normal(1, 70, 20), normal(2, 30, 20)
  plain = lambda a, b: jnp.dot(a, b, precision=lax.Precision.HIGHEST)
  results, cpu = [], jax.devices('cpu')[0]
  for dot in Arithmetic(precision=precision).dot, plain:
    with jax.default_device(cpu):
      y, vjp = jax.vjp(dot, a, b)
      results.append((y, *vjp(jnp.asarray(g))))
  jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize('model', [
    'mlp(precision=tf32)', 'resnet18(precision=tf32, convolution=native)'])
def test_a_run_on_cpus_has_float32_products_only(model, monkeypatch):
  federation = build.federation(Config(
      model=model, dataset='digits', algorithm='fedavg'))
  monkeypatch.setattr(jax, 'default_backend', lambda: 'cpu')
  with pytest.raises(UserError, match=(
      'model.precision must be highest on CPUs.*tf32. Remove it, or use a GPU'
      )):
    round_spec.alone(federation)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert round_spec.alone(federation).program


def test_highest_is_the_plain_product():
  """So its results are bit-identical to jnp.dot."""
  a, b = normal(0, 30, 70), normal(1, 70, 20)
  text = lambda f: jax.jit(f).lower(a, b).as_text()
  plain = lambda a, b: jnp.dot(a, b, precision=lax.Precision.HIGHEST)
  actual, expected = text(Arithmetic().dot), text(plain)
  assert actual.replace('jit_dot', '') == expected.replace('jit__lambda', '')
