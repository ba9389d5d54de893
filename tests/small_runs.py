"""A run of a second, which many tests share, and ways to end it early."""

import dataclasses

import jax
import numpy as np

from moon_jax.config import Config

CONFIG = Config(
    dataset='breast_cancer', model='mlp', projection_dim=8, algorithm='fedavg',
    num_clients=8, participation=.5, beta=5., local_epochs=1, batch_size=16,
    learning_rate=.02, num_rounds=3, checkpoint_every=100)


def at(path, **changes):
  """Returns the configuration of the run in a work directory."""
  return dataclasses.replace(CONFIG, workdir=str(path), **changes)


def assert_same(found, expected, atol):
  """Checks results of `benchmarks.kills.outcome`."""
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol),
      found, expected)


def raising(error):
  """Returns a function that raises an error."""
  def function(*_, **__):
    raise error
  return function


def at_call(monkeypatch, owner, name, number, error):
  """Raises an error instead of a call of a method, the `number`-th."""
  method, calls = getattr(owner, name), []

  def call(*args, **kwargs):
    calls.append(1)
    if len(calls) == number:
      raise error
    return method(*args, **kwargs)

  monkeypatch.setattr(owner, name, call)
