"""GPUs, and plans for one that is not available, compiled for CPUs."""

import dataclasses
import tomllib

from hypothesis import given
from hypothesis import strategies as st
import jax
import pytest

from moon_jax import trees
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.distributed import devices
from moon_jax.engine.round import Round
from moon_jax.errors import UserError
from moon_jax.runs import targets
from moon_jax.runs.targets import plan
from moon_jax.simulation import build, round_spec
from moon_jax.simulation.simulation import Simulation
from support.docs_pages import ROOT

CONFIG = Config(
    dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
    participation=.5, local_epochs=3, batch_size=8,
    algorithm='moon(num_negatives=2)', num_rounds=7)
DATASET = sources.load_dataset('breast_cancer', '')
GPU = targets.Target('small', '', 8_000_000_000)


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 400),
       st.integers(1, 16), st.integers(1, 5), st.integers(0, 20))
def test_the_most_lanes_are_found(base, slope, limit, now, unit, more):
  """Memory is linear; so few numbers of lanes are compiled."""
  now, most = now * unit, (now + more) * unit
  compiled = []

  def need(lanes):
    compiled.append(lanes)
    return base + slope * lanes

  found = plan.most_lanes(need, limit, now, most, unit)
  assert found == max((lanes for lanes in range(unit, most + 1, unit)
                       if base + slope * lanes <= limit), default=0)
  assert compiled[0] == now and len(set(compiled)) == len(compiled) <= 4
  assert found in (0, *compiled)


@pytest.mark.parametrize('lane_gb, changes, words', [
    (.1, {}, ['small: 8 lane(s) on 1 GPU(s)\ncompiled in 5 s', '0.800',
              'usable: 75% of 8.0 GB', 'It fits. 8 lane(s) fit.',
              "cuDNN's workspace is not"]),
    (.1, {'num_clients': 40}, ['16 lane(s) on', '20 lane(s) fit']),
    (.1, {'num_devices': 4}, ['8 lane(s) on 4 GPU(s)']),
    (.1, {'num_devices': 3}, ['8 lane(s) on 2 GPU(s)']),
    (2, {}, ['8 lane(s) on 1 GPU(s) (--lanes=0) need 16.0 GB per GPU, but JAX '
             'can use only 6.0 GB of small. Largest parts, in GB: temporaries '
             '16.0, models 0.0. 2 lane(s) fit. Set --lanes=2']),
    (7, {}, ['Not even one lane on each GPU fits', '--batch_size (now 8)',
             'set --model.dtype=bfloat16, or']),
])
def test_the_report(lane_gb, changes, words, monkeypatch):
  """The number of lanes is that of a run on GPUs."""
  def compile_round(spec, on):
    lanes = spec.shape.num_lanes // spec.shape.num_devices
    return plan.Compiled(
        {'models': 1000, 'temporaries': int(lanes * lane_gb * 1e9)},
        '$__cudnn$', 5.2, True)

  monkeypatch.setattr(plan, 'mesh', lambda target, num_devices: None)
  monkeypatch.setattr(plan, 'compile_round', compile_round)
  num_devices = changes.pop('num_devices', 1)
  try:
    text = plan.plan(dataclasses.replace(CONFIG, **changes), GPU, num_devices)
  except UserError as error:
    text = str(error)
  for part in words:
    assert part in text


@pytest.mark.parametrize('fraction, usable', [('', 750), ('.9', 900)])
def test_jax_uses_a_fraction_of_the_memory(monkeypatch, fraction, usable):
  monkeypatch.setenv('XLA_CLIENT_MEM_FRACTION', fraction)
  assert plan.usable(GPU._replace(memory_bytes=1000)) == usable


@pytest.mark.parametrize('fraction', ['0', '1.1', 'nan', '90%'])
def test_an_invalid_fraction_is_an_error(monkeypatch, fraction):
  monkeypatch.setenv('XLA_CLIENT_MEM_FRACTION', fraction)
  with pytest.raises(UserError, match=f'must be above 0.*got {fraction}'):
    plan.usable(GPU)


def test_a_description_that_xla_rejects_is_an_error(monkeypatch):
  def reject(**_):
    raise jax.errors.JaxRuntimeError('no such field\nmore')

  monkeypatch.setattr(plan.topologies, 'get_topology_desc', reject)
  with pytest.raises(UserError, match=r'small \(.*no such field\)'):
    plan.mesh(GPU, 1)


@pytest.mark.parametrize('changes', [
    {}, {'algorithm': 'scaffold', 'optimizer': 'sgd(momentum=0)'},
    {'algorithm': 'solo'},
    {'client_eval_every': 1}, {'partition': 'feature_noise'},
    {'shard_data': True, 'local_epochs': 1},
])
def test_arguments_have_the_shapes_of_a_run(changes):
  config = dataclasses.replace(CONFIG, lanes=2, **changes)
  federation = build.federation(config, DATASET)
  simulation = Simulation(federation)
  assert simulation.num_devices == 2
  spec = round_spec.make(federation, 2, 2)
  program = simulation.program
  round_ = Round(spec.program, program.mesh, program.training.spec)
  expected = round_.arguments(*program.round_arguments([0]))
  actual = plan.arguments(spec)
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for shape, array in zip(*map(jax.tree.leaves, (actual, expected))):
    assert (shape.shape, shape.dtype) == (array.shape, array.dtype)


@pytest.mark.long
def test_the_compiled_round_is_that_of_a_run(monkeypatch):
  """With cuBLAS, if XLA cannot compile tile sizes that it chose itself."""
  config = dataclasses.replace(
      CONFIG, lanes=2, algorithm='solo', client_eval_every=1)
  federation = build.federation(config, DATASET)
  simulation = Simulation(federation)
  simulation.compile()
  spec = round_spec.make(federation, 2, 2)
  lower, reasons = Round.lower, [plan._TILING_ERROR, 'another']

  class Lowered:

    def __init__(self, lowered):
      self.lowered = lowered

    def compile(self, options=None):
      if options == {'xla_gpu_enable_triton_gemm': False}:
        return self.lowered.compile()
      raise jax.errors.JaxRuntimeError(f'INTERNAL: {reasons[-1]} that satisfy')

  monkeypatch.setattr(
      Round, 'lower', lambda self, *args: Lowered(lower(self, *args)))
  with pytest.raises(jax.errors.JaxRuntimeError, match='another'):
    plan.compile_round(spec, devices.mesh(2))
  reasons.pop()
  compiled = plan.compile_round(spec, devices.mesh(2))
  memory = simulation.program._round._run.memory_analysis()
  data, model = DATASET, trees.bytes_of(spec.model)
  assert compiled.parts == {
      'models, client state and table of a round':
          memory.argument_size_in_bytes - compiled.parts['training examples'],
      'training examples': data.train_inputs.nbytes + data.train_labels.nbytes,
      'test examples': data.test_inputs.nbytes + data.test_labels.nbytes,
      'new model, server state and metrics':
          memory.output_size_in_bytes - memory.alias_size_in_bytes,
      'temporaries of the compiled round': simulation.temporary_bytes(),
      'local models of the previous round':
          spec.shape.jobs_per_device * model,
      'models of all clients, evaluated together': 16 * model}
  assert compiled.seconds > 0 and compiled.by_cublas


def test_the_gpus_of_the_package():
  found = {name: round(targets.find(name).memory_bytes / 1e9)
           for name in targets.names()}
  assert found == {'a100': 85, 'h100': 85, 'h200': 151, 'l4': 24, 'rtx4090': 26}
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  data = project['tool']['setuptools']['package-data']
  assert data['moon_jax.runs.targets'] == ['*.txtpb']
