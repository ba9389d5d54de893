"""The sweep command, with a stand-in for the training."""

import os
import re

import pytest

from moon_jax.cli import command_line
from moon_jax.cli import grids as grids_lib
from moon_jax.config import Config
from moon_jax.errors import DivergedError, UserError
from moon_jax.results import sweep_table
from moon_jax.runs.grid import Sweep
from support import inline, ROOT

pytestmark = pytest.mark.usefixtures('of_command')

FLAGFILE = f'--flagfile={ROOT / "experiments" / "quickstart.flags"}'
SUMMARY = {'rounds': 2, 'test_accuracy': .5, 'best_test_accuracy': .6}

class StandIn:
  """Trains nothing; the summary of the last run may be given."""

  last = SUMMARY

  def __init__(self, configs, axes, root):
    self.configs, self.root = configs, root

  def train(self, max_runs, part):
    print('run', len(self.configs), self.root, max_runs, part)
    return [SUMMARY] * (len(self.configs) - 1) + [self.last]


@pytest.fixture
def started(monkeypatch, tmp_path):
  """Returns a function that runs the command without training."""
  def plan(runs, max_runs, part, is_measured, trained):
    return f'plan of {len(runs.configs)} runs in {runs.root}'

  monkeypatch.setattr('moon_jax.runs.run.Runs', StandIn)
  monkeypatch.setattr('moon_jax.runs.plan.dry_run', plan)

  def run(*args, last=SUMMARY):
    monkeypatch.setattr(StandIn, 'last', last)
    done = inline.run(*args, cwd=tmp_path)
    return done.status, done.out, done.err

  return run


def build(*words, path='', grids=()):
  """Builds the sweep of the words of a command line."""
  named = {word.removeprefix('--').partition('=')[0] for word in words}
  config = Config(**command_line.settings_of(words))
  return grids_lib.build(config, named, grids, path)


def test_the_command_trains_a_grid_and_writes_its_table(started, tmp_path):
  status, out, err = started(
      FLAGFILE, '--grid', 'algorithm=moon,moon(mu=5)', '--grid=seed=0,1',
      '--num_rounds=2', f'--workdir={tmp_path}', '--max_runs=2', '--part=1/4')
  assert (status, err) == (0, '')
  lines = out.splitlines()
  assert lines[0] == '2 combination(s) of settings equal other runs'
  assert lines[1] == f'run 2 {tmp_path} 2 (1, 4)'
  name, = (tmp_path / 'sweeps').iterdir()
  assert re.fullmatch(r'digits-algorithm-seed-[0-9a-f]{16}\.md', name.name)
  assert lines[-1] == f'table: {name}'
  # The file is Markdown; the terminal has the same cells.
  file = [[cell.strip() for cell in line.strip('|').split('|')]
          for line in name.read_text().splitlines() if '---' not in line]
  assert file[1:] == [re.split('  +', line.strip()) for line in lines[3:-1]]
  assert ['moon', '2', '2', '50.0 ± 0.0', '60.0 ± 0.0'] in file


@pytest.mark.parametrize('dataset, name', [
    ('hf:org/birds,label=species', 'hf.birds'),
    ('hf:/data/a.b/table.json,test_fraction=0.2', 'hf.table'),
    ('own.loaders:load', 'own.loaders.load')])
def test_tables_of_all_data_sets_are_in_one_directory(
    started, tmp_path, dataset, name):
  status, out, err = started(
      f'--dataset={dataset}', '--grid=seed=0,1', f'--workdir={tmp_path}')
  assert (status, err) == (0, '')
  path, = (tmp_path / 'sweeps').iterdir()
  assert re.fullmatch(rf'{name}-seed-[0-9a-f]+\.md', path.name)
  assert out.splitlines()[-1] == f'table: {path}'


def test_a_dry_run_prints_the_plan_only(started, tmp_path):
  """The flags without --grid need not be those of a run."""
  status, out, _ = started(
      '--dry_run', '--rounds=fedasync', '--clock=lognormal',
      '--grid=rounds.concurrency=2,3',
      f'--workdir={tmp_path}')
  assert (status, out) == (0, f'plan of 2 runs in {tmp_path}\n')
  assert not list(tmp_path.iterdir())


def test_a_diverged_run_ends_with_status_1_after_the_table(started, tmp_path):
  status, out, err = started(
      '--grid=seed=0,1', f'--workdir={tmp_path}',
      last={'diverged': 'NaN', 'rounds': 1})
  assert status == 1 and '1 of 2 (1 diverged)' in out and 'table: ' in out
  assert err == ('moon_jax.train: 1 of 2 runs diverged; the table names '
                 'them\n')


@pytest.mark.parametrize('text, expected', [
    ('0/1', (0, 1)), ('3/4', (3, 4)),
    *[(text, None) for text in ('1', '-1/4', '0/0', '1/2/3')]])
def test_parts(text, expected):
  try:
    assert grids_lib.part(text) == expected
  except UserError as error:
    assert not expected and 'Array jobs are numbered from 0' in str(error)


def test_a_flag_file_of_the_sweep_file_names_no_directory(tmp_path):
  (tmp_path / 'a.flags').write_text('--workdir=/tmp/x\n')
  (tmp_path / 's.toml').write_text(
      'flagfile = "a.flags"\n[[runs]]\nseed = [0, 1]\n')
  with pytest.raises(UserError, match='--workdir=/tmp/x is the directory of one'
                     ' run'):
    grids_lib.build(Config(), frozenset(), [], str(tmp_path / 's.toml'))


def test_flags_are_those_of_files_and_command_line(tmp_path):
  """A call on the command line replaces the part of a flag file."""
  (tmp_path / 'a.flags').write_text(
      '--algorithm.mu=1\n--dataset=digits\n--seed=2')
  words = f'--flagfile={tmp_path / "a.flags"}', '--seed=3', '--workdir=x'
  fields = lambda named: [
      (str(c.algorithm), c.seed, c.dataset, c.workdir)
      for c in named.sweep.configs]
  assert fields(build(*words, grids=['algorithm=fedavg,moon'])) == [
      ('fedavg', 3, 'digits', ''), ('moon', 3, 'digits', '')]
  assert fields(build(*words, grids=['algorithm.num_negatives=1,2'])) == [
      ('moon(mu=1)', 3, 'digits', ''),
      ('moon(num_negatives=2, mu=1)', 3, 'digits', '')]


def test_an_argument_is_for_all_functions_of_a_grid():
  named = build('--algorithm.mu=2', grids=['algorithm=fedprox,moon'])
  assert [str(c.algorithm) for c in named.sweep.configs] == [
      'fedprox(mu=2)', 'moon(mu=2)']


@pytest.fixture
def file(tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text("""
dataset = "digits"
seed = [0, 1]
learning_rate = 0.1
[[runs]]
"algorithm.mu" = [1, 2]
[[runs]]
algorithm = "fedprox"
seed = 7
""")
  return str(path)


def test_flags_replace_those_of_the_file(file):
  fields = lambda named: [(str(c.algorithm), c.seed, c.learning_rate)
                          for c in named.sweep.configs]
  assert fields(build(path=file)) == [
      ('moon(mu=1)', 0, .1), ('moon(mu=1)', 1, .1), ('moon(mu=2)', 0, .1),
      ('moon(mu=2)', 1, .1), ('fedprox', 7, .1)]
  assert fields(build('--seed=2', path=file, grids=['algorithm.mu=3'])) == [
      ('moon(mu=3)', 2, .1), ('fedprox(mu=3)', 2, .1)]
  assert fields(build('--algorithm.mu=3', path=file,
                      grids=['learning_rate=.2,.3'])) == [
      ('moon(mu=3)', 0, .2), ('moon(mu=3)', 0, .3), ('moon(mu=3)', 1, .2),
      ('moon(mu=3)', 1, .3), ('fedprox(mu=3)', 7, .2),
      ('fedprox(mu=3)', 7, .3)]


def test_the_name_of_the_table_is_that_of_the_file(file):
  assert build(path=file).name == 'a'
  assert build('--data_dir=x', path=file).name == 'a'
  for word in '--num_rounds=3', '--algorithm.mu=3':
    assert re.fullmatch('a-[0-9a-f]{16}', build(word, path=file).name)


@pytest.mark.parametrize('words, grid, message', [
    (['--algorithm.mu=1'], 'algorithm=fedavg,solo',
     '--grid algorithm=fedavg: --algorithm=fedavg has no arguments; got '
     'mu=1'),
    (['--algorithm.mu=1'], 'algorithm=moon(mu=5),fedprox',
     '--algorithm=moon(mu=5) and --algorithm.mu=1 exclude each other'),
    (['--algorithm.mu=1'], 'algorithm.mu=1,5',
     '--grid algorithm.mu=1,5 and --algorithm.mu=1 exclude each other'),
    ([], 'algorithm.moo=1,5', 'has the arguments num_negatives, mu, '),
    ([], 'algorithm.mu=1,-5', '--grid algorithm.mu=-5: --algorithm.mu must be '
     'at least 0; got -5'),
])
def test_invalid_command_lines(words, grid, message):
  with pytest.raises(UserError) as error:
    build(*words, grids=[grid])
  assert message in str(error.value)


def test_arguments_of_a_file_and_a_call_do_not_contradict_each_other(file):
  with pytest.raises(UserError, match=re.escape(
      '--algorithm=moon(mu=5) and --algorithm.mu=1 exclude each other')):
    build('--algorithm=moon(mu=5)', path=file)


def test_two_flag_files_are_refused(tmp_path):
  (tmp_path / 'a.flags').write_text('--dataset=digits')
  (tmp_path / 'a.toml').write_text('flagfile = "a.flags"')
  with pytest.raises(UserError, match='--flagfile must not be .*a.toml'):
    grids_lib.build(Config(), {'flagfile'}, [],
                  str(tmp_path / 'a.toml'))


def test_title_and_description_head_the_table(tmp_path):
  sweep = Sweep.grid(Config(dataset='digits'), seed=[0])
  named = grids_lib.Named(sweep, 'name', 'Title', 'Some\nwords.\n')
  sweep_table.finish(named, [SUMMARY], str(tmp_path))
  text = (tmp_path / 'sweeps' / 'name.md').read_text()
  assert text.startswith('# Title\n\nSome\nwords.\n\n| n | rounds_done |')
  assert os.listdir(tmp_path / 'sweeps') == ['name.md']
  with pytest.raises(DivergedError):
    sweep_table.finish(named, [{'diverged': 'NaN', 'rounds': 0}], str(tmp_path))
  assert '0 of 1 (1 diverged)' in (tmp_path / 'sweeps/name.md').read_text()


def test_a_directory_that_cannot_be_written(tmp_path):
  (tmp_path / 'sweeps').write_text('')
  named = grids_lib.Named(
      Sweep.grid(Config(dataset='digits'), seed=[0]), 'name')
  with pytest.raises(UserError, match='--workdir=.* must be writable; got File'
                     ' exists'):
    sweep_table.finish(named, [SUMMARY], str(tmp_path))
