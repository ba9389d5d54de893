"""Runs of one program that end alone, or are interrupted and move."""

import dataclasses
import json
import signal
import time

import pytest

from moon_jax.errors import DivergedError, InterruptedRun
from moon_jax.runs import prepare, run, unit
from moon_jax.runs.signals import Interrupt
from moon_jax.simulation import checks, round_spec
from moon_jax.simulation.evaluation import Evaluator
from moon_jax.simulation.program import Program
from support import small_runs
from support.small_runs import ended_at_call

NUM_RUNS = 3
SIGNAL = InterruptedRun(signal.SIGTERM)
CONFIGS = [dataclasses.replace(
    small_runs.CONFIG, learning_rate=.02 + seed / 100, checkpoint_every=1,
    partition_seed=0, seed=seed) for seed in range(NUM_RUNS)]


def train(directory, seeds=range(NUM_RUNS)):
  """Trains runs together; a single one as `moon_jax.train` does."""
  configs = [dataclasses.replace(
      CONFIGS[seed], workdir=str(directory / str(seed))) for seed in seeds]
  if len(configs) == 1:
    return [run.run(configs[0])]
  call = prepare.once()
  runs = [prepare.prepare(checks.validate(config), call) for config in configs]
  return unit.Unit(runs, lambda: [round_spec.alone(
      made.build(), num_checkpoints=made.config.num_checkpoints())
                                  for made in runs]).train()


def files(directory, seed):
  """Returns the lines and the model of a run."""
  model = directory / str(seed) / 'model.safetensors'
  return (small_runs.lines_of(directory / str(seed)),
          model.exists() and model.read_bytes())


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The files of each run, trained alone without a break."""
  directory = tmp_path_factory.mktemp('whole')
  for seed in range(NUM_RUNS):
    train(directory, [seed])
  return [files(directory, seed) for seed in range(NUM_RUNS)]


@pytest.mark.long
def test_a_run_that_diverges_in_an_evaluation_ends_alone(
    whole, tmp_path, monkeypatch):
  """The next command trains it again, from its checkpoint."""
  test = Evaluator.test

  def fail(self, variables_R, round_number, *rest):
    if self._federation.seed == 1 and round_number == 2:
      raise DivergedError('round 2: mine')
    return test(self, variables_R, round_number, *rest)

  with monkeypatch.context() as changed:
    changed.setattr(Evaluator, 'test', fail)
    results = train(tmp_path)
  error = 'round 2: mine. The last checkpoint is that of round 1'
  assert isinstance(results[1], DivergedError) and str(results[1]) == error
  note = tmp_path / '1' / 'diverged.json'
  assert json.loads(note.read_text()) == {
      'rounds': 1, 'error': error, 'on_nan': 'stop'}
  assert not (tmp_path / '1' / 'summary.json').exists()
  assert files(tmp_path, 1) == (whole[1][0][:1], False)
  for seed in 0, 2:
    assert results[seed]['rounds'] == 3
    assert files(tmp_path, seed) == whole[seed]
    assert not (tmp_path / str(seed) / 'diverged.json').exists()
  train(tmp_path, [1])
  assert files(tmp_path, 1) == whole[1]
  assert not note.exists()


@pytest.mark.long
def test_runs_move_between_programs(whole, tmp_path):
  # A round waits for training, then for the evaluation of each run.
  with ended_at_call(Interrupt, 'call', 1 + NUM_RUNS + 3, SIGNAL):
    train(tmp_path)
  done = [len(files(tmp_path, seed)[0]) for seed in range(NUM_RUNS)]
  assert done == [2, 1, 1]
  train(tmp_path, [1])
  # The third waits for its second round, and the first for its third.
  with ended_at_call(Interrupt, 'call', 4, SIGNAL):
    train(tmp_path, [0, 2])
  train(tmp_path, [0, 2])
  for seed in range(NUM_RUNS):
    assert files(tmp_path, seed) == whole[seed]


@pytest.mark.long
def test_runs_that_began_alone_finish_together(whole, tmp_path, monkeypatch):
  # In the evaluation of the second round.
  with ended_at_call(Interrupt, 'call', 4, SIGNAL):
    train(tmp_path, [2])
  assert len(files(tmp_path, 2)[0]) == 1
  compile_runs, compile_seconds, start = (
      Program.compile, [], time.perf_counter())

  def compile_(self):
    compile_seconds.append(compile_runs(self))
    return compile_seconds[-1]

  monkeypatch.setattr(Program, 'compile', compile_)
  summaries = train(tmp_path)
  # Each run has its share of the time that all took together.
  total = lambda name: sum(summary[name] for summary in summaries)
  assert total('total_seconds') <= time.perf_counter() - start + .02
  assert total('compile_seconds') == pytest.approx(
      sum(compile_seconds), abs=.02)
  for seed in range(NUM_RUNS):
    assert files(tmp_path, seed) == whole[seed]
