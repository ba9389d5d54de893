"""The public names of the package, and what a Python program relies on."""

import ast
import importlib
import pathlib

import jax
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax.runs import run


def federation(data, **changes):
  clients = mj.partition.iid(len(data.train_labels), num_clients=4, seed=0)
  return mj.Federation(**{
      'data': data, 'clients': clients, 'model': mj.mlp(data.num_classes),
      'algorithm': mj.fedavg(), 'local_epochs': 1, 'batch_size': 16,
      'learning_rate': .05, **changes})


def test_public_names_exist_and_are_listed():
  assert {'Config', 'Federation', 'Part', 'moon_l2', 'run_sweep'} <= {
      *mj.__all__}
  assert len(set(mj.__all__)) == len(mj.__all__)
  assert all(getattr(mj, name) is not None for name in mj.__all__)
  assert set(mj.__all__) <= set(dir(mj))
  assert mj.run_sweep is run.run_sweep
  with pytest.raises(AttributeError, match='no attribute .fedsgd'):
    mj.fedsgd  # noqa: B018
  with pytest.raises(AttributeError, match="Did you mean 'Federation'"):
    mj.federaton  # noqa: B018


def test_packages_find_the_modules_that_are_public():
  """Another import may have put a module there; this must not depend on it."""
  stub = ast.parse(pathlib.Path(mj.__file__).with_suffix('.pyi').read_text())
  for node in ast.walk(stub):
    if isinstance(node, ast.ImportFrom) and node.module:
      package = importlib.import_module(f'moon_jax.{node.module}')
      if '__path__' in vars(package) and '__getattr__' in vars(package):
        assert {alias.name for alias in node.names} <= {*package.__all__}


def test_rounds_can_be_stopped_and_continued(digits):
  whole, parts = (mj.Simulation(federation(digits)) for _ in range(2))
  records = list(whole.rounds(3, eval_every=2))
  assert [record.round for record in records] == [1, 2, 3]
  assert [record.test_accuracy is None for record in records] == [
      True, False, False]
  for _ in parts.rounds(5):
    break
  assert parts.rounds_done == 1
  *_, last = parts.rounds(2)
  assert (last.round, last.test_accuracy, last.train_loss) == (
      3, records[-1].test_accuracy, records[-1].train_loss)
  assert last.test_loss == last.metrics['test_loss']


@pytest.mark.long
def test_a_federation_and_its_configuration_give_the_same_bits(digits):
  config = mj.Config(
      dataset='digits', partition='iid', num_clients=4, model='mlp',
      algorithm='moon(mu=1, num_negatives=2)', local_epochs=1, batch_size=16,
      learning_rate=.05, num_rounds=2, server='sgd(momentum=0.5)')
  from moon_jax.simulation import build

  algorithm = mj.with_server_optimizer(
      mj.moon(num_negatives=2, mu=1.), optax.sgd(1., momentum=.5))
  flags, values = (mj.Simulation(f) for f in (
      build.federation(config), federation(digits, algorithm=algorithm)))
  for x, y in zip(flags.rounds(2), values.rounds(2)):
    assert x.metrics == y.metrics
  jax.tree.map(np.testing.assert_array_equal, flags.state_on_host(),
               values.state_on_host())
