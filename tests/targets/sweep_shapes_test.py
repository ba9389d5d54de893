"""Tests that the round of several runs on GPUs has the shapes of a sweep."""

import dataclasses

import jax
import pytest

from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.engine.round import Round
from moon_jax.simulation import build
from moon_jax.simulation import round_spec
from moon_jax.simulation.program import Runs
from moon_jax.targets import deviceless

CONFIG = Config(
    dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
    participation=.5, local_epochs=3, batch_size=8, num_negatives=2,
    num_rounds=7, lanes=2)
DATASET = sources.load('breast_cancer', '')


@pytest.mark.parametrize('changes', [
    {}, {'algorithm': 'scaffold', 'momentum': 0.}, {'client_eval_every': 1},
    {'server_momentum': .5}, {'shard_data': True, 'local_epochs': 1},
])
def test_arguments_have_the_shapes_of_several_runs(changes):
  federations = [
      build.federation(dataclasses.replace(
          CONFIG, seed=seed, learning_rate=rate, **changes), DATASET)
      for seed, rate in enumerate((.01, .1, .1))]
  program = Runs(federations)
  planned = program._rounds.prepared([0, 0, 0])
  round_ = Round(program.spec.program, program.mesh, program.training.spec)
  expected = round_._on_devices(
      program.state, program._hparams_of([0, 0, 0]), planned.table,
      planned.data)
  spec, _ = round_spec.together(
      program.specs, jax.device_count(), is_cpu=True)
  actual = deviceless.arguments(
      spec, max(max(map(len, f.clients)) for f in federations), 3)
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for shape, array in zip(*map(jax.tree.leaves, (actual, expected))):
    assert (shape.shape, shape.dtype) == (array.shape, array.dtype)
