"""Tests that the stages are valid, short enough and complete."""

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks.gpu_day import __main__ as command
from benchmarks.gpu_day import child
from benchmarks.gpu_day import results
from benchmarks.gpu_day import stages
from benchmarks.gpu_day import surroundings
from benchmarks.gpu_day import tables
from moon_jax.config import Config
from moon_jax.models.arithmetic import CONVOLUTIONS
from moon_jax.models.arithmetic import PRECISIONS
from moon_jax.simulation import checks

ROOT = pathlib.Path(__file__).parents[3]
STAGE_SECONDS = 8 * 60  # limit of one stage
TOTAL_SECONDS = 30 * 60


@pytest.fixture(params=[False, True], ids=['full', 'tiny'])
def options(request):
  return stages.Options('/data', '/golden', 'cuda', request.param)


def test_parts_are_valid(options):
  for plan in stages.STAGES.values():
    parts = plan.parts_fn(options)
    assert parts and len({part.name for part in parts}) == len(parts)
    for part in parts:
      assert part.kind in child.KINDS
      assert json.loads(json.dumps(part.task)) == part.task
      assert part.least <= part.limit <= STAGE_SECONDS
      if 'config' in part.task:
        checks.validate(Config(**part.task['config']))


def test_stages_fit_in_half_an_hour():
  assert set(stages.STAGES) == set(tables.TITLES) == set(tables.TABLES)
  seconds = [plan.seconds for plan in stages.STAGES.values()]
  assert max(seconds) <= STAGE_SECONDS and sum(seconds) <= TOTAL_SECONDS - 120
  pairs = [sum(seconds[i:i + 2]) for i in (0, 2, 4)]
  assert max(pairs) <= 550  # a command may take 600 s


def test_concurrent_processes_share_the_gpu(options):
  for plan in stages.STAGES.values():
    for part in plan.parts_fn(options):
      is_shared = plan.jobs > 1 or part.kind in ('pair', 'agreement')
      assert is_shared == (
          part.env.get('XLA_PYTHON_CLIENT_PREALLOCATE') == 'false')


def test_all_precisions_and_convolutions_are_measured():
  options = stages.Options('', '/golden', 'cuda', False)
  for name, choices in (('precision', PRECISIONS),
                        ('convolution', CONVOLUTIONS)):
    configs = [part.task['config'] for part in stages.resnet(options)]
    assert {config.get(name, choices[0]) for config in configs} == set(choices)
  choices = [part.task['choice'] for part in stages.tests(options)
             if part.kind == 'precision']
  assert choices == [
      *({'precision': name} for name in PRECISIONS), {'dtype': 'bfloat16'}]


def test_stages_use_the_settings_of_the_paper():
  """Stage 2 uses the defaults of `Config`, stage 3 the flag file."""
  options = stages.Options('/data', '', 'cuda', False)
  paper = Config()
  first = stages.speed(options)[0].task
  config = Config(**first['config'])
  for field in ('model', 'batch_size', 'num_negatives', 'augment', 'beta',
                'num_clients', 'dataset', 'learning_rate'):
    assert getattr(config, field) == getattr(paper, field)
  for part in stages.train(options):
    assert '--flagfile=experiments/cifar10.flags' in part.task['flags']
  for part in stages.sweep(options):
    assert len(part.task['seeds']) * len(part.task['mus']) == 12
  assert any(part.task['config']['num_clients'] == 10_000
             for part in stages.scaling(options))


@pytest.mark.slow
def test_stages_run_on_a_cpu(tmp_path):
  """Runs reduced sizes, without the stages that take longest to compile."""
  command_line = [sys.executable, '-m', 'benchmarks.gpu_day', '--stage=3,4,6',
                  '--tiny', '--device=cpu', f'--out={tmp_path}']
  done = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  [sweep] = parts_of(tmp_path, 4).values()
  assert sweep['result']['num_runs'] == 4
  assert sweep['result']['largest_difference'] < 1e-6
  trained = parts_of(tmp_path, 3)
  assert [p['result']['rounds'] for p in trained.values()] == [2, 2]
  again = subprocess.run(
      command_line, cwd=ROOT, capture_output=True, text=True)
  assert again.stdout.count('already done') == 4
  report = subprocess.run(
      [sys.executable, '-m', 'benchmarks.gpu_day.report', tmp_path], cwd=ROOT,
      capture_output=True, text=True, check=True).stdout
  assert 'Not done' not in report and str(tmp_path) not in report


def parts_of(out, stage):
  return results.parts(results.read(results.path_of(out, stage)))


def test_commands_contain_no_paths():
  assert command._command(
      ['--all', '--out=/a/b', '--data_dir=/c', '--match=x=y']) == (
          'python -m benchmarks.gpu_day --all --out=OUT --data_dir=DATA_DIR '
          '--match=x=y')


@pytest.mark.parametrize('words', [
    ['--stage=7', '--out=x'], ['--stage=1'], ['--out=x'],
    ['--all', '--stage=1', '--out=x']])
def test_invalid_flags_are_refused(words, capsys):
  with pytest.raises(SystemExit) as error:
    command._parse(words)
  assert error.value.code == 2 and capsys.readouterr().err


def test_commit_without_git(tmp_path, monkeypatch):
  def no_git(*args, **kwargs):
    raise FileNotFoundError

  monkeypatch.setattr(subprocess, 'run', no_git)
  monkeypatch.setattr(surroundings, '_ROOT', tmp_path)
  assert surroundings.commit('abc') == 'abc'
  assert surroundings.commit('') == 'unknown'
  (tmp_path / 'commit.txt').write_text('def\n')
  assert surroundings.commit('') == 'def'
