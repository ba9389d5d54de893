"""Losses compared with closed forms and plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import losses

random = np.random.RandomState(0)
TAU = np.float32(.5)


def vectors(*shape):
  return random.standard_normal(shape).astype(np.float32)


contrastive_B = jax.jit(losses.model_contrastive_B)


def equation_3(z, z_global, z_previous, tau):
  """Returns equation 3 of the paper, one example at a time, in float64."""
  def similarity(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))

  out = []
  for b in range(len(z)):
    positive = np.exp(similarity(z[b], z_global[b]) / tau)
    negatives = sum(
        np.exp(similarity(z[b], previous[b]) / tau) for previous in z_previous)
    out.append(-np.log(positive / (positive + negatives)))
  return np.array(out)


@pytest.mark.parametrize('k', [1, 2, 5])
@pytest.mark.parametrize('tau', [.1, .5, 1.])
def test_model_contrastive_is_equation_3(k, tau):
  z, z_global, z_previous = vectors(6, 7), vectors(6, 7), vectors(k, 6, 7)
  actual = contrastive_B(
      z, z_global, z_previous, np.float32(tau), np.int32(k))
  expected = equation_3(*(np.asarray(a, np.float64)
                          for a in (z, z_global, z_previous)), tau)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_empty_slots_do_not_count():
  z, z_global, z_previous = vectors(4, 7), vectors(4, 7), vectors(3, 4, 7)
  for filled in (1, 2, 3):
    np.testing.assert_allclose(
        contrastive_B(z, z_global, z_previous, TAU, np.int32(filled)),
        contrastive_B(
            z, z_global, z_previous[:filled], TAU, np.int32(filled)),
        rtol=1e-6)


def test_without_previous_models_loss_and_gradient_are_0():
  """Even if the empty slots are zeros."""
  def loss(z):
    return contrastive_B(z, vectors(4, 7), np.zeros((2, 4, 7), np.float32),
                         TAU, np.int32(0)).sum()

  value, grads = jax.jit(jax.value_and_grad(loss))(vectors(4, 7))
  assert value == 0
  assert (grads == 0).all()


def test_extreme_temperature_is_finite():
  z = vectors(4, 7)
  grads = jax.jit(jax.grad(lambda z: contrastive_B(
      z, -z, z[None], np.float32(1e-3), np.int32(1)).sum()))(z)
  assert jnp.isfinite(grads).all()


def test_cosine_of_zero_vector_is_0_with_finite_gradient():
  a = jnp.zeros(5)
  assert losses.cosine_similarity(a, jnp.ones(5)) == 0
  grads = jax.grad(lambda a: losses.cosine_similarity(a, jnp.ones(5)))(a)
  assert jnp.isfinite(grads).all()


@pytest.mark.parametrize('scale', [1e-6, 1e-3, 1e3])
def test_cosine_does_not_depend_on_lengths(scale):
  a, b = vectors(4, 7), vectors(4, 7)
  np.testing.assert_allclose(
      losses.cosine_similarity(scale * a, b), losses.cosine_similarity(a, b),
      rtol=1e-5)


def test_cross_entropy_of_equal_logits_is_log_k():
  loss_B = losses.cross_entropy_B(jnp.zeros((3, 10)), jnp.arange(3))
  np.testing.assert_allclose(loss_B, np.log(10), rtol=1e-6)


def test_masked_mean():
  values = jnp.array([1., 2., jnp.nan])
  assert losses.masked_mean(values, jnp.array([1., 1., 0.])) == 1.5
  assert losses.masked_mean(values, jnp.zeros(3)) == 0
