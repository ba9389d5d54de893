"""Tests plans for a GPU with a fake compiler."""

import dataclasses
import pathlib
import types

import jax
import pytest

from moon_jax import plan as plan_command
from moon_jax import targets
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.targets import deviceless, fit, plan

HLO = (pathlib.Path(__file__).parent / 'round.hlo').read_text()
CONFIG = Config(
    dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
    participation=.5, local_epochs=3, batch_size=8, num_negatives=2,
    num_rounds=7)
H200 = targets.find('h200')
DATASET = sources.load('breast_cancer', '')


class Compiler:
  """A fake compiler: each lane of a device takes `lane_bytes` temporaries."""

  def __init__(self, lane_bytes, seconds=1.):
    self.specs, self._lane_bytes, self._seconds = [], lane_bytes, seconds

  def __call__(self, spec):
    self.specs.append(spec)
    lanes = spec.shape.num_lanes // spec.shape.num_devices
    return deviceless.Compiled(lanes * self._lane_bytes, {'arguments': 300}, 40,
                               HLO, self._seconds)


def make_plan(compiler, num_devices=1, target=H200, **changes):
  return plan.plan(dataclasses.replace(CONFIG, **changes), target, num_devices,
                   DATASET, compiler)


def test_default_lanes_are_those_of_a_run_on_gpus():
  compiler = Compiler(1)
  found = make_plan(compiler)
  assert found.where == '8 lane(s) on 1 GPU(s)'  # clients of a round
  assert found.fits and found.fit == fit.Fit(8, True, (8,), True)
  assert [spec.shape.num_lanes for spec in compiler.specs] == [8]
  assert make_plan(compiler, num_clients=40).where.startswith('16 lane(s)')
  assert make_plan(compiler, lanes=2).where.startswith('2 lane(s)')
  assert make_plan(compiler, 4).where == '8 lane(s) on 4 GPU(s)'
  assert make_plan(compiler, 3).where == '8 lane(s) on 2 GPU(s)'


def test_parts_include_arrays_that_stay_on_the_device():
  test = DATASET.test_inputs.nbytes + DATASET.test_labels.nbytes
  parts = {'arguments': 300, 'new model, server state and metrics': 40,
           'temporaries of the compiled round': 8000, 'test examples': test}
  found = make_plan(Compiler(1000))
  assert found.parts == parts and found.need == 8340 + test
  model = 4 * (30 * 200 + 200 + 200 * 200 + 200 + 200 * 200 + 200 + 200 * 256
               + 256 + 256 * 2 + 2)
  evaluated = make_plan(Compiler(1000), client_eval_every=1, lanes=2)
  assert evaluated.parts['local models of the previous round'] == 8 * model
  solo = make_plan(Compiler(1000), algorithm='solo', mu=-1.)
  assert solo.parts['models of all clients, evaluated together'] == 16 * model


@pytest.mark.parametrize('fraction, usable', [(None, 750), ('.9', 900)])
def test_jax_uses_a_fraction_of_the_memory(monkeypatch, fraction, usable):
  if fraction:
    monkeypatch.setenv('XLA_CLIENT_MEM_FRACTION', fraction)
  assert fit.usable(1000) == usable


@pytest.mark.parametrize('fraction', ['0', '1.1', 'nan', 'all'])
def test_an_invalid_fraction_is_an_error(monkeypatch, fraction):
  monkeypatch.setenv('XLA_CLIENT_MEM_FRACTION', fraction)
  with pytest.raises(UserError, match=f'must be above 0.*got {fraction}'):
    fit.usable(1000)


def test_rows_are_those_of_the_schedule():
  """Each of 8 clients has 28 examples and takes 9 steps per round."""
  assert make_plan(Compiler(1)).rows == 9
  assert make_plan(Compiler(1), lanes=2).rows == 36
  assert make_plan(Compiler(1)).counts.launches() == 13
  fewer = make_plan(Compiler(1), lanes=2, dropout_rate=.5).rows
  assert 9 <= fewer < 30
  assert make_plan(Compiler(1), lanes=2, dropout_rate=.5,
              dropout_stage='after_training').rows == 36


def test_finds_the_lanes_that_fit():
  usable = fit.usable(H200.memory_bytes)
  compiler = Compiler(usable // 6)
  found = make_plan(compiler)
  assert not found.fits and found.fit.num_lanes == 5
  assert found.fit.compiled == (8, 4, 5) and found.fit.is_compiled
  slow = make_plan(Compiler(usable // 6, seconds=plan._CHEAP_SECONDS))
  assert slow.fit.num_lanes == 5 and not slow.fit.is_compiled
  assert slow.fit.compiled == (8, 4)


def test_the_report():
  found = make_plan(Compiler(10**9))
  text = plan.show(CONFIG, found)
  for words in (
      'NVIDIA H200 141GB HBM3e: --algorithm=moon --model=mlp',
      '8 lane(s) on 1 GPU(s)', 'temporaries of the compiled round',
      '8.000', '113.548', 'usable: 75% of 151.4 GB', 'It fits. 8 lane(s) fit '
      '(compiled: 8 lane(s)), one for each client of a round',
      ': 13 (11 fusions, 1 library calls, 1 copies, 1 inner loops, 1 '
      'conditionals)', 'whole program: 1 all-reduce',
      'rows per round, of the longest lane: 9\n'):
    assert words in text, words
  assert 'cuBLAS was used instead' in plan.show(CONFIG, found._replace(
      compiled=found.compiled._replace(by_cublas=True)))
  assert '1 all-reduce, 1 of them in loops' in plan.show(
      CONFIG, found._replace(counts=found.counts._replace(
          in_loops={'all-reduce': 1})))
  assert "cuDNN's workspace is not" in plan.show(CONFIG, found._replace(
      compiled=found.compiled._replace(hlo='custom_call_target="__cudnn$c"')))
  assert 'cuDNN' not in text
  shared = make_plan(Compiler(1), 4, num_clients=10, participation=1., lanes=4)
  assert shared.fit.is_most and (
      'the most that 4 GPUs can share evenly' in plan.show(CONFIG, shared))


def test_the_memory_error_names_the_lanes_that_fit():
  small = H200._replace(name='small', memory_bytes=8_000_000_000)
  found = make_plan(Compiler(2_000_000_000), target=small)
  message = plan.memory_error(CONFIG, found)
  assert 'need 16.0 GB per GPU, but JAX can use only 6.0 GB of small' in message
  assert 'temporaries of the compiled round 16.0. 2 lane(s) fit' in message
  assert message.endswith('Set --lanes=2')
  none = make_plan(Compiler(7_000_000_000), target=small)
  message = plan.memory_error(CONFIG, none)
  assert 'Not even one lane on each GPU fits' in message
  assert '--batch_size (now 8)' in message and '--dtype=bfloat16' in message
  expensive = make_plan(Compiler(2_000_000_000, seconds=1e3), target=small)
  assert 'linear fit through 4 and 8 lanes' in plan.memory_error(
      CONFIG, expensive)


def run_command(monkeypatch, target, num_processes=1, gbit=0.):
  flags = {'_TARGET': target, '_DEVICES': 0, '_PROCESSES': num_processes,
           '_SECONDS_PER_ROW': 0., '_SECONDS_PER_JOB': 0., '_GBIT': gbit}
  for name, value in flags.items():
    monkeypatch.setattr(plan_command, name, types.SimpleNamespace(
        name=name[1:].lower(), value=value, present=value == 10.))
  plan_command.plan(CONFIG)


def test_command_prints_plan_and_memory_error(monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(targets, 'is_installed', lambda: True)
  monkeypatch.setattr(deviceless, 'mesh', lambda target, num_devices: None)
  compiler = Compiler(2_000_000_000)
  monkeypatch.setattr(
      deviceless, 'compile_round',
      lambda spec, on: compiler(spec))
  run_command(monkeypatch, 'h200')
  assert 'It fits.' in capsys.readouterr().out
  path = tmp_path / 'small.txtpb'
  path.write_text(H200.text.replace(str(H200.memory_bytes), '8000000000'))
  with pytest.raises(UserError, match='Set --lanes=2'):
    run_command(monkeypatch, str(path))
  assert 'It does not fit. 2 lane(s) fit' in capsys.readouterr().out


def test_a_missing_compiler_is_an_error(monkeypatch):
  monkeypatch.setattr(targets, '_PLUGINS', ('no_such_plugin',))
  with pytest.raises(UserError, match=r"pip install 'jax\[cuda12\]==") as error:
    run_command(monkeypatch, 'a100')
  assert jax.__version__ in str(error.value)


@pytest.mark.parametrize('flags, words', [
    (dict(target='a100', gbit=10.), '--gbit applies to.*remove it'),
    (dict(target='a100', num_processes=2), '--processes=2'),
    (dict(target='h300'), '--target=h300 is neither')])
def test_invalid_flags_are_refused(flags, words, monkeypatch):
  with pytest.raises(UserError, match=words):
    run_command(monkeypatch, **flags)


@pytest.mark.parametrize('error, remedy', [
    (NotImplementedError, 'Set JAX_PLATFORMS=cpu before JAX starts'),
    (jax.errors.JaxRuntimeError, 'remove that field'),
])
def test_a_description_that_xla_rejects_is_an_error(
    monkeypatch, error, remedy):
  def reject(**_):
    raise error('no such field\nmore')

  monkeypatch.setattr(deviceless.topologies, 'get_topology_desc', reject)
  with pytest.raises(
      UserError, match=r'NVIDIA H200.*\(no such field\)') as raised:
    deviceless.mesh(H200, 1)
  assert remedy in str(raised.value)
