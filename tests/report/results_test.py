"""Finding finished runs."""

import dataclasses
import json

import invented_runs
import pytest

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.report import results

FEDAVG = Config(dataset='digits', algorithm='fedavg', num_rounds=2)


def of(configs, found):
  return [found.get(results.key(config)) for config in configs]


def test_runs_are_found_by_what_decides_their_results(tmp_path):
  """A mu without effect, the directory and the hardware do not count."""
  invented_runs.write(tmp_path, FEDAVG, [.1, .2])
  found = results.find([tmp_path])
  same = dataclasses.replace(FEDAVG, mu=5., lanes=2, checkpoint_every=1,
                             data_dir='elsewhere')
  other = dataclasses.replace(FEDAVG, seed=1)
  run, none = of([same, other], found)
  assert none is None and run.summary['test_accuracy'] == .2
  assert [line['test_accuracy'] for line in run.metrics] == [.1, .2]


def test_runs_that_exclude_clients_are_others(tmp_path):
  """--on_nan may change when a run resumes, but it changes results."""
  skips = dataclasses.replace(FEDAVG, on_nan='skip_client')
  for config, accuracy in (FEDAVG, .1), (skips, .2):
    invented_runs.write(tmp_path, config, [accuracy])
  found = of([FEDAVG, skips], results.find([tmp_path]))
  assert [run.summary['test_accuracy'] for run in found] == [.1, .2]


def test_the_first_directory_counts(tmp_path):
  for name, accuracy in (('a', .1), ('b', .2)):
    (tmp_path / name).mkdir()
    invented_runs.write(tmp_path / name, FEDAVG, [accuracy])
  found = results.find([tmp_path / 'b', tmp_path / 'a'])
  assert of([FEDAVG], found)[0].summary['test_accuracy'] == .2


def test_configurations_of_other_versions_are_read(tmp_path):
  path = invented_runs.write(tmp_path, FEDAVG, [.1])
  content = json.loads((path / 'config.json').read_text())
  del content['shuffle'], content['workdir']
  content |= {'inputs': {}, 'a_later_flag': 1}
  (path / 'config.json').write_text(json.dumps(content))
  assert of([FEDAVG], results.find([tmp_path]))[0]


def test_unfinished_and_diverged_runs(tmp_path):
  path = invented_runs.write(tmp_path, FEDAVG, [.1])
  (path / 'summary.json').unlink()
  assert not results.find([tmp_path])
  (path / 'diverged.json').write_text('{"error": "NaN", "rounds": 1}')
  run, = results.find([tmp_path]).values()
  assert run.diverged == 'NaN' and not run.summary


@pytest.mark.parametrize('name', [
    'config.json', 'metrics.jsonl', 'summary.json'])
def test_damaged_files_are_errors(name, tmp_path):
  path = invented_runs.write(tmp_path, FEDAVG, [.1])
  (path / name).write_text('{')
  with pytest.raises(UserError, match=f'{name} must be .*restore it from a'):
    results.find([tmp_path])


def test_a_missing_directory_is_an_error(tmp_path):
  with pytest.raises(UserError, match='no must be a directory .*--runs name'):
    results.find([tmp_path / 'no'])


def test_normalized_configurations_can_be_commands():
  config = dataclasses.replace(FEDAVG, mu=5., temperature=2.)
  assert '--mu' not in results.normalized(config).command()
  assert '--temp' not in results.normalized(config).command()
