"""A run of a second, which many tests share, and ways to end it early."""

import dataclasses
import json

from moon_jax.config import Config

CONFIG = Config(
    dataset='breast_cancer', model='mlp', projection_dim=8, algorithm='fedavg',
    num_clients=8, participation=.5, beta=5., local_epochs=1, batch_size=16,
    learning_rate=.02, num_rounds=3, checkpoint_every=100)
_CLOCK = 'seconds', 'examples_per_second'


def at(path, **changes):
  """Returns the configuration of the run in a work directory."""
  return dataclasses.replace(CONFIG, workdir=str(path), **changes)


def lines_of(path):
  """Returns the lines of metrics.jsonl in a directory, without times."""
  with open(path / 'metrics.jsonl', encoding='utf-8') as file:
    lines = [json.loads(line) for line in file]
  return [{k: v for k, v in line.items() if k not in _CLOCK} for line in lines]


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
