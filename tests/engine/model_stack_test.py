"""Tests of what clients receive from a stack of models."""

import types

import jax
import jax.numpy as jnp
import pytest

from moon_jax import tasks
from moon_jax.algorithms.base import Batch, Examples
from moon_jax.engine import model_stack
from moon_jax.models import Model, Outputs


def test_losses_of_models_are_means_over_predictions():
  """Two batches: of two sequences, and of one and padding."""
  labels_SBT = jnp.array([[[1, 2, -1, -1], [0, 1, 2, -1]],
                          [[2, -1, -1, -1], [0, 0, 0, 0]]])
  mask_SB = jnp.array([[1., 1.], [1., 0.]])
  logits_MBTK = jax.random.normal(jax.random.key(0), (3, 2, 4, 3))
  model = Model(
      init=lambda key, inputs: {}, apply=lambda variables, *_, **__: (
          Outputs(*[variables['logits']] * 3), variables), task=tasks.TOKENS)
  program = types.SimpleNamespace(
      model=model, topology=types.SimpleNamespace(num_models=3))
  batch = lambda s: Batch(jnp.zeros((2, 4)), labels_SBT[s], mask_SB[s])
  losses_M = model_stack._losses(
      program, {'logits': logits_MBTK}, Examples(batch, jnp.int32(2)))
  for logits_BTK, loss in zip(logits_MBTK, losses_M):  # 5 labels, and 1
    assert loss == pytest.approx((5 * tasks.TOKENS.loss(
        logits_BTK, batch(0)) + tasks.TOKENS.loss(logits_BTK, batch(1))) / 6)
