"""Tests that a round compiled for GPUs has the shapes of a run."""

import dataclasses

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import devices
from moon_jax.engine import schedule
from moon_jax.engine.round import Round
from moon_jax.simulation import build, round_spec
from moon_jax.simulation.simulation import Simulation
from moon_jax.targets import deviceless

CONFIG = Config(
    dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
    participation=.5, local_epochs=3, batch_size=8, num_negatives=2,
    num_rounds=7)
DATASET = sources.load('breast_cancer', '')


@pytest.mark.parametrize('changes', [
    {}, {'algorithm': 'scaffold', 'momentum': 0.}, {'algorithm': 'solo'},
    {'client_eval_every': 1}, {'partition': 'feature_noise'},
    {'shard_data': True, 'local_epochs': 1},
])
def test_arguments_have_the_shapes_of_a_run(changes):
  config = dataclasses.replace(CONFIG, lanes=2, **changes)
  federation = build.federation(config, DATASET)
  simulation = Simulation(federation)
  assert simulation.num_devices == 2
  spec = round_spec.make(federation, 2, 2)
  program = simulation._program
  table, data = simulation._a_table()
  round_ = Round(spec.program, program._mesh, program._training.spec)
  expected = round_._on_devices(
      simulation.state, program._hparams_of([0]), table, data)
  actual = deviceless.arguments(spec)
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for shape, array in zip(*map(jax.tree.leaves, (actual, expected))):
    assert (shape.shape, shape.dtype) == (array.shape, array.dtype)


def test_the_compiled_round_is_that_of_a_run():
  config = dataclasses.replace(
      CONFIG, lanes=2, algorithm='scaffold', momentum=0.)
  federation = build.federation(config, DATASET)
  simulation = Simulation(federation)
  simulation.compile()
  spec = round_spec.make(federation, 2, 2)
  compiled = deviceless.compile_round(spec, devices.mesh(2))
  assert compiled.temporary_bytes == simulation.temporary_bytes() > 0
  assert compiled.seconds > 0
  memory = simulation._program._round._run.memory_analysis()
  total = sum(compiled.argument_bytes.values())
  assert memory.argument_size_in_bytes == pytest.approx(total, rel=.01)
  assert min(compiled.argument_bytes.values()) > 0
  assert compiled.result_bytes == (
      memory.output_size_in_bytes - memory.alias_size_in_bytes) > 0


def test_cublas_is_used_if_xla_cannot_compile_its_tile_sizes():
  """Happens with one lane on each GPU."""
  class Lowered:
    def __init__(self, message):
      self.message = message

    def compile(self, options=None):
      if options == {'xla_gpu_enable_triton_gemm': False}:
        return 'compiled'
      raise jax.errors.JaxRuntimeError(self.message)

  error = "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot"
  assert deviceless._compile(Lowered(error)) == ('compiled', True)
  with pytest.raises(jax.errors.JaxRuntimeError, match='another'):
    deviceless._compile(Lowered('another'))


def test_client_state_has_the_size_of_the_cohort():
  """Two of 10**6 clients take part."""
  inputs = np.zeros((2, 30), np.float32)
  dataset = Dataset('two', inputs, np.zeros(2, np.int32), inputs,
                    np.zeros(2, np.int32), ('a', 'b'))
  config = dataclasses.replace(CONFIG, num_clients=10**6)
  federation = build.federation(
      config, dataset, [np.arange(2)] * 10**6, [[0, 1]])
  spec = round_spec.make(federation, 2, 1)
  _, clients_J, _, table, _ = deviceless.arguments(spec)
  jobs = schedule.jobs_per_device(2, 1)
  assert all(x.shape[0] == jobs for x in jax.tree.leaves(clients_J))
  assert len(table.jobs.client) == jobs
