"""The sweep command, with a stand-in for the training."""

import os
import re

from forked import ROOT
import pytest

from moon_jax.cli.command_line import Given
from moon_jax.config import Config
from moon_jax.errors import DivergedError, UserError
from moon_jax.sweep import command
from moon_jax.sweep.grid import Sweep

FLAGFILE = f'--flagfile={ROOT / "experiments" / "quickstart.flags"}'
SUMMARY = {'rounds': 2, 'test_accuracy': .5, 'best_test_accuracy': .6}

# Runs the command with a stand-in for moon_jax.sweep.run and plan.
SCRIPT = """
import sys
import types
import moon_jax.sweep
from moon_jax.sweep import __main__ as main

def run(sweep, workdir, max_runs, part):
  print('run', len(sweep.configs), workdir, max_runs, part)
  summaries = [dict(rounds=2, test_accuracy=.5, best_test_accuracy=.6)
               for _ in sweep.configs]
  summaries[-1] = {last}
  return summaries

fake = types.ModuleType('moon_jax.sweep.run')
fake.run_all = run
sys.modules['moon_jax.sweep.run'] = moon_jax.sweep.run = fake
plan = types.ModuleType('moon_jax.sweep.plan')
plan.dry_run = lambda sweep, workdir, max_runs, part: (
    f'plan of {{len(sweep.configs)}} runs in {{workdir}}')
sys.modules['moon_jax.sweep.plan'] = moon_jax.sweep.plan = plan
sys.argv[0] = 'moon_jax.sweep'
main.main()
"""


@pytest.fixture
def started(whole, tmp_path_factory):
  """Returns a function that runs the command."""
  def run(*args, last='summaries[0]'):
    here = tmp_path_factory.mktemp('command')
    (here / 'own_sweep.py').write_text(SCRIPT.format(last=last))
    done = whole.run(*args, cwd=here, module='own_sweep')
    return done.status, done.out, done.err

  return run


def build(path='', grids=(), of_files=None, **given):
  """Builds the sweep of flags that are given on the command line."""
  return command.build(Config(**(of_files or {}) | given),
                       Given({*given}, of_files or {}), grids, path)


def test_the_command_trains_a_grid_and_writes_its_table(started, tmp_path):
  status, out, err = started(
      FLAGFILE, '--grid', 'algorithm=fedavg,moon', '--grid=mu=1,5',
      '--num_rounds=2', f'--workdir={tmp_path}', '--max_runs=2', '--part=1/4')
  assert (status, err) == (0, '')
  lines = out.splitlines()
  assert lines[0] == '1 combination(s) of settings equal other runs'
  assert lines[1] == f'run 3 {tmp_path} 2 (1, 4)'
  name, = (tmp_path / 'sweeps').iterdir()
  assert re.fullmatch(r'digits-algorithm-mu-[0-9a-f]{16}\.md', name.name)
  assert lines[-1] == f'table: {name}'
  # The file is Markdown; the terminal has the same cells.
  file = [[cell.strip() for cell in line.strip('|').split('|')]
          for line in name.read_text().splitlines() if '---' not in line]
  assert file[1:] == [line.split() for line in lines[3:-1]]
  assert ['moon', '5', '1', '2', '50.0', '60.0'] in file


@pytest.mark.parametrize('dataset, name', [
    ('hf:org/birds,label=species', 'hf.birds'),
    ('hf:/data/a.b/table.csv,test_fraction=0.2', 'hf.table'),
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
      '--dry_run', '--learning_rate_schedule=step', '--grid=decay_rounds=1,2',
      f'--workdir={tmp_path}')
  assert (status, out) == (0, f'plan of 2 runs in {tmp_path}\n')
  assert not list(tmp_path.iterdir())


def test_a_diverged_run_ends_with_status_1_after_the_table(started, tmp_path):
  status, out, err = started(
      '--grid=seed=0,1', f'--workdir={tmp_path}',
      last="{'diverged': 'NaN', 'rounds': 1}")
  assert status == 1 and '1 of 2 (1 diverged)' in out and 'table: ' in out
  assert err == ('moon_jax.sweep: 1 of 2 runs diverged; the table names '
                 'them\n')


@pytest.mark.parametrize('text, expected', [
    ('0/1', (0, 1)), ('3/4', (3, 4)),
    *[(text, None) for text in ('1', '-1/4', '0/0', '1/2/3')]])
def test_parts(text, expected):
  try:
    assert command.part(text) == expected
  except UserError as error:
    assert not expected and 'array jobs are numbered from 0' in str(error)


def test_a_flag_file_of_the_sweep_file_names_no_directory(tmp_path):
  (tmp_path / 'a.flags').write_text('--workdir=/tmp/x\n')
  (tmp_path / 's.toml').write_text(
      'flagfile = "a.flags"\n[[runs]]\nseed = [0, 1]\n')
  with pytest.raises(UserError, match='--workdir=/tmp/x is the directory of one'
                     ' run'):
    command.build(Config(), Given(), [], str(tmp_path / 's.toml'))


def test_flags_are_those_of_files_and_command_line():
  """A mu of MOON in a flag file stays in its FedAvg runs, as in single ones."""
  named = build(grids=['algorithm=fedavg,moon'], seed=3, workdir='x',
                of_files={'mu': 1., 'dataset': 'digits', 'seed': 2})
  assert [(c.algorithm, c.mu, c.seed, c.dataset, c.workdir)
          for c in named.sweep.configs] == [
              ('fedavg', 1., 3, 'digits', ''), ('moon', 1., 3, 'digits', '')]


def test_a_given_mu_is_for_the_methods_that_read_it():
  named = build(grids=['algorithm=fedavg,fedprox,moon'], mu=2.)
  assert [c.mu for c in named.sweep.configs] == [0., 2., 2.]


@pytest.fixture
def file(tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text(
      'dataset = "digits"\nseed = [0, 1]\nlearning_rate = 0.1\n'
      '[[runs]]\nmu = [1, 5]\n[[runs]]\nalgorithm = "fedavg"\nseed = 7\n')
  return str(path)


def test_flags_replace_those_of_the_file(file):
  fields = lambda named: [(c.algorithm, c.mu, c.seed, c.learning_rate)
                          for c in named.sweep.configs]
  assert fields(build(path=file)) == [
      ('moon', 1., 0, .1), ('moon', 1., 1, .1), ('moon', 5., 0, .1),
      ('moon', 5., 1, .1), ('fedavg', 0., 7, .1)]
  assert fields(build(path=file, grids=['mu=3'], seed=2)) == [
      ('moon', 3., 2, .1), ('fedavg', 0., 2, .1)]
  assert fields(build(path=file, grids=['learning_rate=.2,.3'],
                      mu=3.)) == [
      ('moon', 3., 0, .2), ('moon', 3., 0, .3), ('moon', 3., 1, .2),
      ('moon', 3., 1, .3), ('fedavg', 0., 7, .2), ('fedavg', 0., 7, .3)]


def test_the_name_of_the_table_is_that_of_the_file(file):
  assert build(path=file).name == 'a'
  assert build(path=file, data_dir='x').name == 'a'
  changed = build(path=file, num_rounds=3).name
  assert re.fullmatch('a-[0-9a-f]{16}', changed)


@pytest.mark.parametrize('arguments, message', [
    (dict(mu=1., grids=['algorithm=fedavg,solo']),
     '--mu has no effect on any run, with --algorithm=fedavg, --algorithm=sol'),
    (dict(of_files={'mu': 1.}, grids=['algorithm=fedprox']),
     '--mu=1.0 is for --algorithm=moon; give --mu for'),
])
def test_invalid_command_lines(arguments, message):
  with pytest.raises(UserError, match=message):
    build(**arguments)


def test_two_flag_files_are_refused(tmp_path):
  (tmp_path / 'a.flags').write_text('--dataset=digits')
  (tmp_path / 'a.toml').write_text('flagfile = "a.flags"')
  with pytest.raises(UserError, match='a.toml names a flag file itself'):
    command.build(Config(), Given({'flagfile'}, {}), [],
                  str(tmp_path / 'a.toml'))


def test_title_and_description_head_the_table(tmp_path):
  sweep = Sweep.grid(Config(dataset='digits'), seed=[0])
  named = command.Named(sweep, 'name', 'Title', 'Some\nwords.\n')
  command.finish(named, [SUMMARY], str(tmp_path))
  text = (tmp_path / 'sweeps' / 'name.md').read_text()
  assert text.startswith('# Title\n\nSome\nwords.\n\n| n | rounds |')
  assert os.listdir(tmp_path / 'sweeps') == ['name.md']
  with pytest.raises(DivergedError):
    command.finish(named, [{'diverged': 'NaN', 'rounds': 0}], str(tmp_path))
  assert '0 of 1 (1 diverged)' in (tmp_path / 'sweeps/name.md').read_text()


def test_a_directory_that_cannot_be_written(tmp_path):
  (tmp_path / 'sweeps').write_text('')
  named = command.Named(Sweep.grid(Config(dataset='digits'), seed=[0]), 'name')
  with pytest.raises(UserError, match='--workdir=.* must be writable, got File'
                     ' exists'):
    command.finish(named, [SUMMARY], str(tmp_path))
