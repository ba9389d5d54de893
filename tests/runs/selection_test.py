"""The best model and early stopping, also of runs that are interrupted."""

import dataclasses
import json
import types

import numpy as np
import pytest

import moon_jax
from moon_jax.config import Config
from moon_jax.data import sources, split
from moon_jax.runs import run, summary
from moon_jax.runs.directory import Workdir
from moon_jax.runs.recorder import Selection
from support import small_runs

CONFIG = dataclasses.replace(
    small_runs.CONFIG, num_clients=4, model='mlp', participation=1.,
    learning_rate=.002, num_rounds=30,
    validation_fraction=.2, keep_best=True, early_stopping=3,
    checkpoint_every=2, metrics='f1,confusion')
_TIMES = ('seconds', 'examples_per_second', 'seconds_per_round',
          'compile_seconds', 'total_seconds', 'command')


def lines_of(*accuracies):
  return [{'round': t} | ({} if a is None else {
      'validation_accuracy': a, 'test_accuracy': 1 - a})
          for t, a in enumerate(accuracies, 1)]


def test_an_evaluation_that_is_not_finite_counts_but_is_not_the_best():
  lines = lines_of(.5, .7, .1, .1)
  for line in lines[2:]:
    line['validation_accuracy'] = None
  assert summary.best_line(lines)['round'] == 2
  assert summary.is_stopped(Config(early_stopping=2), lines)
  assert not summary.is_stopped(Config(early_stopping=3), lines)


def test_an_evaluation_of_the_models_of_clients_is_none_of_the_global_model():
  lines = lines_of(.5, None, .4, None)
  for line in lines:
    line['validation_personal_accuracy'] = .3
  config = Config(early_stopping=2)
  assert not summary.is_stopped(config, lines)
  assert 'stopped_early' not in summary.validation_fields(config, lines)


@pytest.mark.parametrize('accuracies, best, since', [
    ((), None, 0), ((None, None), None, 0), ((.5,), 1, 0),
    ((.5, .7, .7), 2, 1), ((.5, None, .7, None, .6, .7, .1), 3, 3)])
def test_the_earliest_of_the_best_counts(accuracies, best, since):
  lines = lines_of(*accuracies)
  found = summary.best_line(lines)
  assert (found and found['round']) == best
  for patience in 1, 2, 3, 4:
    config = Config(early_stopping=patience)
    assert summary.is_stopped(config, lines) == (since >= patience)
  assert not summary.is_stopped(Config(), lines)
  if best:
    fields = summary.validation_fields(Config(), lines)
    assert fields['test_accuracy_of_best_validation'] == (
        1 - accuracies[best - 1])
    assert fields['validation_accuracy'] == [
        a for a in accuracies if a is not None][-1]


@pytest.mark.parametrize('patience', [1, 2, 3])
@pytest.mark.parametrize('after', range(8))
def test_a_plain_loop_stops_in_the_same_round(patience, after):
  accuracies = [.1, .2, .1, None, .1, .3, .1, .2, .1, .4, .1, .1, .1, .1]
  best, waited, expected = 0., 0, None
  for number, accuracy in enumerate(accuracies, 1):
    if accuracy is not None and accuracy > best:
      best, waited = accuracy, 0
    elif accuracy is not None and number > after:
      waited += 1
    if waited == patience:
      expected = number
      break
  config = Config(early_stopping=patience, early_stopping_after=after)
  lines = lines_of(*accuracies)
  assert expected == next((
      number for number in range(len(lines) + 1)
      if summary.is_stopped(config, lines[:number])), None)
  assert expected is None or after + patience <= expected


def outcome(path):
  """Returns what a run leaves, without times."""
  summary = json.loads((path / 'summary.json').read_text())
  return (small_runs.lines_of(path),
          {k: v for k, v in summary.items() if k not in _TIMES},
          (path / 'best.safetensors').read_bytes(),
          (path / 'model.safetensors').read_bytes())


def at(path, **changes):
  return dataclasses.replace(CONFIG, workdir=str(path), **changes)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  path = tmp_path_factory.mktemp('whole')
  run.run(at(path))
  return path


def test_a_run_ends_when_its_patience_does(whole, capsys):
  lines, summary, *_ = outcome(whole)
  accuracies = [line['validation_accuracy'] for line in lines]
  best = int(np.argmax(accuracies))
  assert 1 < best and len(lines) == best + 1 + 3 < 30
  assert summary['rounds'] == len(lines) and summary['stopped_early']
  assert (summary['best_validation_round'], summary['best_validation_accuracy'],
          summary['test_accuracy_of_best_validation']) == (
              best + 1, accuracies[best], lines[best]['test_accuracy'])
  assert summary['f1'] == lines[-1]['f1'] and 'confusion' not in summary
  # It is complete, and is so with more rounds.
  for num_rounds in 30, 90:
    assert run.run(at(whole, num_rounds=num_rounds))['rounds'] == len(lines)
  assert capsys.readouterr().out.count('is complete') == 2


def test_the_best_model_has_the_accuracies_of_its_round(whole):
  *_, best, last = outcome(whole)
  assert best != last
  dataset = sources.load_dataset('breast_cancer', '')
  lines, summary, *_ = outcome(whole)
  model, variables = moon_jax.load(whole / 'best.safetensors')
  validation = split.make(CONFIG, dataset).validation
  np.testing.assert_array_equal(
      validation, np.load(whole / 'partition.npz')['validation'])
  for inputs, labels, expected in (
      (dataset.train_inputs[validation], dataset.train_labels[validation],
       summary['best_validation_accuracy']),
      (dataset.test_inputs, dataset.test_labels,
       summary['test_accuracy_of_best_validation'])):
    logits = np.asarray(model(variables, inputs).logits)
    assert (logits.argmax(1) == labels).mean() == pytest.approx(expected)


@pytest.mark.long
def test_an_interrupted_run_leaves_the_same_files(
    whole, tmp_path, monkeypatch):
  expected = outcome(whole)
  best = expected[1]['best_validation_round']
  cuts = ['before the best line', 'after the best model',
          'after the best line', 'at the end', 'nowhere']
  append, save = Workdir.append_metrics, Selection.save
  write = Workdir.write

  def end(where, round_number=best):
    if cuts[0] == where and round_number == best:
      raise KeyboardInterrupt

  def append_and_end(self, line):
    end('before the best line', line['round'])
    append(self, line)
    end('after the best line', line['round'])

  def save_and_end(self, round_number, *rest):
    save(self, round_number, *rest)
    end('after the best model', round_number)

  def write_and_end(self, name, content):
    write(self, name, content)
    if name == 'best.safetensors':
      end('at the end')

  monkeypatch.setattr(Workdir, 'append_metrics', append_and_end)
  monkeypatch.setattr(Selection, 'save', save_and_end)
  monkeypatch.setattr(Workdir, 'write', write_and_end)
  while len(cuts) > 1:
    with pytest.raises(KeyboardInterrupt):
      run.run(at(tmp_path))
    assert not (tmp_path / 'summary.json').exists()
    del cuts[0]
  run.run(at(tmp_path))
  assert outcome(tmp_path) == expected


def test_more_rounds_continue_as_one_run(whole, tmp_path):
  """The best model of the shorter run is still there, and stops the longer."""
  expected = outcome(whole)
  best = expected[1]['best_validation_round']
  shorter = run.run(at(tmp_path, num_rounds=best + 1))
  assert 'stopped_early' not in shorter
  assert shorter['rounds'] == best + 1
  run.run(at(tmp_path))
  assert outcome(tmp_path) == expected


def test_only_needed_models_are_kept(tmp_path):
  """Round 4, whose checkpoint is complete, needs 3; 8, still unfinished, 6."""
  config = dataclasses.replace(CONFIG, workdir=str(tmp_path))
  models = Selection(config, types.SimpleNamespace(), Workdir(config))
  for name in '4', '8.orbax-checkpoint-tmp', 'damaged-6-1':
    (tmp_path / 'checkpoints' / name).mkdir(parents=True)
  (tmp_path / 'best').mkdir()
  for number in 1, 2, 3, 5, 6:
    (tmp_path / 'best' / f'{number}.safetensors').write_bytes(b'')
  models.lines = lines_of(.1, .2, .3, .3, .4, .5, .1, .1, .6)
  models.save(9, b'nine')
  left = lambda: sorted(p.name for p in (tmp_path / 'best').iterdir())
  assert left() == [f'{n}.safetensors' for n in (3, 6, 9)]
  (tmp_path / 'metrics.jsonl').write_text(''.join(
      json.dumps(line) + '\n' for line in models.lines[:6]))
  assert models.begin() == models.lines[:6]
  assert left() == ['3.safetensors', '6.safetensors']


def test_a_changed_metric_is_another_run(tmp_path, monkeypatch):
  """Of a user: its value is in each line, and its file is hashed."""
  monkeypatch.syspath_prepend(tmp_path)
  module = tmp_path / 'count_metric.py'
  code = 'def num_first(logits, labels):\n  return (labels == 0).sum()\n'
  module.write_text(code)
  config = at(tmp_path / 'run', num_rounds=1, early_stopping=0,
              keep_best=False, metrics='f1,count_metric:num_first')
  summary = run.run(config)
  labels = sources.load_dataset('breast_cancer', '').test_labels
  assert summary['num_first'] == (labels == 0).sum()
  module.write_text(code + '# changed\n')
  with pytest.raises(moon_jax.UserError, match='metrics=.* had other'):
    run.run(dataclasses.replace(config, num_rounds=2))


def test_the_round_that_stops_a_run_is_its_last_round(tmp_path):
  """Its local models are evaluated and saved, whatever the intervals are."""
  config = dataclasses.replace(
      CONFIG, learning_rate=1e-12, client_eval_every=30, early_stopping=1,
      early_stopping_after=2, client_test_fraction=.3, save_local_models=True,
      metrics='', checkpoint_every=1, workdir=str(tmp_path))
  for number in 2, 3:
    small_runs.run_until(config, number)
  summary = run.run(config)  # of the checkpoint, which has no local models
  assert summary['rounds'] == 3 and summary['stopped_early']
  last = json.loads((tmp_path / 'metrics.jsonl').read_text().splitlines()[-1])
  assert summary['local_heldout_accuracy'] == last['local_heldout_accuracy']
  assert sorted(p.name for p in (tmp_path / 'local_models').iterdir()) == [
      f'{client}.safetensors' for client in sorted(last['clients']['client'])]


@pytest.mark.long
def test_runs_that_train_together_are_named_when_they_stop(tmp_path, capsys):
  config = dataclasses.replace(
      CONFIG, learning_rate=1e-12, early_stopping=1, metrics='')
  summaries = moon_jax.run_sweep(
      moon_jax.Sweep.grid(config, seed=[0, 1]), str(tmp_path))
  lines = capsys.readouterr().out.splitlines()
  for seed, ended in enumerate(summaries):
    name = f'run seed={seed}'
    assert [line.split(':')[0] for line in lines
            if line.startswith(f'{name}, stopped')] == [
                f'{name}, stopped after round {ended["rounds"]}']
    assert sum(line.startswith(f'{name}, best val') for line in lines) == 1
