"""A run of a second, which many tests share, and ways to end it early."""

import contextlib
import dataclasses
import gc
import json
import weakref

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp
import pytest

from moon_jax.config import Config
from moon_jax.runs import run
from moon_jax.simulation import build

CONFIG = Config(
    dataset='breast_cancer', model='mlp(projection_dim=8)', algorithm='fedavg',
    num_clients=8, participation=.5, partition='dirichlet(beta=5)',
    local_epochs=1, batch_size=16, learning_rate=.02, num_rounds=3,
    checkpoint_every=100)


def at(path, **changes):
  """Returns the configuration of the run in a work directory."""
  return dataclasses.replace(CONFIG, workdir=str(path), **changes)


def overflowing_data(path, client=3):
  """Clients 0 to 4, whose fewest is 5 examples; one's overflow float32."""
  random = np.random.RandomState(0)
  x = random.randn(200, 6).astype(np.float32)
  y = np.arange(200) % 2
  x[:, 0] += 3 * y
  owner = np.minimum(np.arange(200) // 40, 4)
  owner[165:] = 2
  scaled = x / x.std()
  scaled[owner == client] *= 1e30
  np.savez(path, x_train=scaled, y_train=y, x_test=x[:50] / x.std(),
           y_test=y[:50], client_train=owner, mean=np.zeros(1),
           std=np.ones(1))
  return Config(
      dataset='npz', data_dir=str(path), partition='natural', num_clients=5,
      model='mlp', algorithm='moon(num_negatives=2)', num_rounds=3,
      local_epochs=1, batch_size=16, learning_rate=.05, checkpoint_every=1)


def lines_of(workdir):
  """Returns the lines of a run's metrics.jsonl, without times."""
  lines = [json.loads(line) for line in
           (workdir / 'metrics.jsonl').read_text().splitlines()]
  return [{name: value for name, value in line.items()
           if name not in ('seconds', 'examples_per_second')}
          for line in lines]


def outcome(workdir):
  """Returns the metrics without times, and the last checkpoint."""
  newest = max((int(path.name) for path in workdir.glob('checkpoints/*')
                if path.name.isdecimal()), default=0)
  return lines_of(workdir), ocp.load(
      (workdir / 'checkpoints' / str(newest)).absolute())


def assert_same(found, expected, atol):
  """Checks results of `outcome`."""
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol),
      found, expected)


def run_until(config, number, error=KeyboardInterrupt, **options):
  """Runs a configuration until an error after a round, which is expected.

  The checkpoint of that round, if it has one, has been written.
  """
  def end(simulation, line):
    if line['round'] == number:
      raise error

  with pytest.raises(error):
    run.run(config, [end], **options)


def raising(error):
  """Returns a function that raises an error."""
  def function(*_, **__):
    raise error
  return function


def held_federations(monkeypatch):
  """Returns a list that gets, for each one made, how many earlier ones live."""
  made, held, make = [], [], build.from_valid

  def federation(*args, **kwargs):
    gc.collect()
    held.append(sum(reference() is not None for reference in made))
    found = make(*args, **kwargs)
    made.append(weakref.ref(found))
    return found

  monkeypatch.setattr(build, 'from_valid', federation)
  return held


@contextlib.contextmanager
def ended_at_call(owner, name, number, error, ended_by=None, match=None):
  """Raises an error instead of a call of a method, the `number`-th, in a block.

  The block must end with this error, or with one of another type.
  """
  with pytest.MonkeyPatch.context() as changed, pytest.raises(
      ended_by or type(error), match=match):
    at_call(changed, owner, name, number, error)
    yield


def at_call(monkeypatch, owner, name, number, error):
  """Raises an error instead of a call of a method, the `number`-th."""
  method, calls = getattr(owner, name), []

  def call(*args, **kwargs):
    calls.append(1)
    if len(calls) == number:
      raise error
    return method(*args, **kwargs)

  monkeypatch.setattr(owner, name, call)
