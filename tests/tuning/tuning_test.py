"""Tuning: trials are runs, and validation data alone decide."""

import collections
import contextlib
import csv
import dataclasses
import random
import re
import shutil

import jax
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import parts
from moon_jax.errors import UserError
from moon_jax.runs.directory import Workdir
from moon_jax.simulation.evaluation import Evaluator
from moon_jax.simulation.program import Program
from moon_jax.tuning import report, train
from moon_jax.tuning.methods import Trial
from moon_jax.tuning.train import Arm, Trials, Tried
from moon_jax.tuning.tuner import sign_of
from support import inline, made_runs, small_runs, tiny_federation

RUN = ['--dataset=digits', '--model=mlp(projection_dim=8)',
       '--algorithm=fedavg', '--train_examples=300', '--num_clients=3',
       '--partition=dirichlet(beta=1)', '--batch_size=16', '--local_epochs=1',
       '--validation_fraction=0.2', '--num_rounds=4',
       '--lanes=2']  # as many devices alone as together
# Two at a time, so that trials begin in the places of others.
TUNED = [*RUN, '--tune=halving(eta=2, rungs=3)', '--max_runs=2',
         '--tune_seeds=1', '--search=learning_rate=log(0.001, 0.3)',
         '--workdir=runs']


class Killed(BaseException):
  """Ends a process; nothing catches it or saves anything."""


def rows_of(path):
  """Returns the rows of tune.csv, without times."""
  file, = path.glob('runs/tuning/*/tune.csv')
  with open(file, newline='') as lines:
    return [{name: x for name, x in row.items() if name != 'seconds'}
            for row in csv.DictReader(lines)]


def tune(path, *words):
  done = inline.run(*words, cwd=path)
  assert done.status == 0, done.err
  return done.out


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """A directory, what the command printed there, and what XLA compiled."""
  path, compiled = tmp_path_factory.mktemp('whole'), collections.Counter()

  def listen(event, _, **known):
    if event == '/jax/core/compile/backend_compile_duration':
      compiled[known.get('fun_name')] += 1

  jax.monitoring.register_event_duration_secs_listener(listen)
  text = tune(path, *TUNED)
  jax.monitoring.unregister_event_duration_listener(listen)
  return path, text, compiled


@pytest.mark.long
def test_half_of_the_trials_continue_in_one_program(whole):
  path, text, compiled = whole
  *trials, tested = rows_of(path)
  assert [row['rounds_done'] for row in trials] == ['4', '2', '1', '1']
  assert [row['chosen'] for row in trials] == ['True', *['False'] * 3]
  assert len({row['learning_rate'] for row in trials}) == 4
  for row in trials:
    lines = small_runs.lines_of(path / row['workdir'])
    assert len(lines) == int(row['rounds_done'])
    assert float(row['value']) == lines[-1][row['metric']]
  # Of those with a round, the best two have continued.
  first = [small_runs.lines_of(path / row['workdir'])[0]['validation_accuracy']
           for row in trials]
  assert min(first[:2]) >= max(first[2:])
  assert tested['seed'] == '1'
  assert tested['learning_rate'] == trials[0]['learning_rate']
  last = small_runs.lines_of(path / tested['workdir'])[-1]
  assert float(tested['test']) == last['test_accuracy']
  best = 100 * float(trials[0]['value'])
  assert f'after round 4, {best:.2f}%: ' in text
  assert 'new seeds 1, tested once: test accuracy' in text
  assert compiled['jit(_run_round)'] == 1


def test_the_page_of_runs_has_their_trials(whole, tmp_path):
  path, text, _ = whole
  done = inline.run('show', 'runs', f'--out={tmp_path}', cwd=path,
                    module='moon_jax')
  assert done.status == 0, done.err
  page = (tmp_path / 'index.md').read_text()
  assert 'new seeds 1, tested once' in page
  assert done.out.startswith('fedavg: 4 trials')
  # The trials are no results: only the run with a new seed is shown.
  [row] = [row for row in csv.DictReader(open(tmp_path / 'runs.csv'))]
  assert row['seed'] == '1'
  assert 'of 4 trials over their number and over learning_rate' in page
  assert len(list((tmp_path / 'index').glob('tuning-*.svg'))) == 1


def test_a_run_that_was_stopped_after_its_last_round_is_finished(
    whole, tmp_path):
  """It has all its lines, and neither a summary nor a model."""
  path, *_ = whole
  shutil.copytree(path, tmp_path, dirs_exist_ok=True)
  *_, tested = rows_of(tmp_path)
  for name in ('summary.json', 'model.safetensors'):
    (tmp_path / tested['workdir'] / name).unlink()
  text = tune(tmp_path, *TUNED)
  assert rows_of(tmp_path) == rows_of(path) and 'diverged' not in text
  assert (tmp_path / tested['workdir'] / 'summary.json').exists()


def test_a_trial_that_continued_is_the_run_alone(whole, tmp_path):
  path, *_ = whole
  chosen = rows_of(path)[0]
  tune(tmp_path, *RUN, f'--learning_rate={chosen["learning_rate"]}',
       '--workdir=alone')
  together = path / chosen['workdir']
  assert small_runs.lines_of(together) == small_runs.lines_of(
      tmp_path / 'alone')
  for name in 'model.safetensors', 'partition.npz':
    assert (together / name).read_bytes() == (
        tmp_path / 'alone' / name).read_bytes()


@pytest.mark.parametrize('number', [
    6, *[pytest.param(x, marks=pytest.mark.slow) for x in (1, 4, 8, 12)]])
def test_a_killed_tuning_chooses_the_same_whatever_the_test_accuracy(
    number, whole, tmp_path, monkeypatch):
  with small_runs.ended_at_call(Workdir, 'append_metrics', number, Killed()):
    inline.run(*TUNED, cwd=tmp_path)
  done = inline.run('show', 'runs', f'--out={tmp_path}/out', cwd=tmp_path,
                    module='moon_jax')
  assert done.status == 0, done.err
  assert '4 trials so far; the tuning has not finished' in done.out
  assert (' of digits' in done.out) == (number > 8)  # a new seed, no trial
  test = Evaluator.test

  def with_other_test(self, *args):
    return test(self, *args) | {'test_accuracy': random.random()}

  monkeypatch.setattr(Evaluator, 'test', with_other_test)
  tune(tmp_path, *TUNED)
  without = lambda rows: [row | {'test': ''} for row in rows]
  assert without(rows_of(tmp_path)) == without(rows_of(whole[0]))


def test_a_named_metric_chooses(tmp_path):
  words = [word for word in RUN if not word.startswith('--num_rounds')]
  tune(tmp_path, *words, '--num_rounds=1', '--workdir=runs', '--tune_seeds=1',
       '--tune=random(trials=2, metric=validation_loss)',
       '--search=learning_rate=log(0.0001, 0.3)')
  *trials, _ = rows_of(tmp_path)
  assert {row['metric'] for row in trials} == {'validation_loss'}
  least, other = sorted(trials, key=lambda row: float(row['value']))
  assert (least['chosen'], other['chosen']) == ('True', 'False')


@pytest.mark.long
def test_equal_trials_are_reported_when_their_stage_ends(tmp_path):
  """Rates so small that no trial learns: the first draw is trained."""
  text = tune(tmp_path, *RUN, '--tune=halving(eta=2, rungs=2)',
              '--tune_seeds=0', '--search=learning_rate=log(1e-12, 1e-11)')
  line = r'2 of 2 trials had \d+\.\d\d% after round 2: only their order '
  at_once, in_report = re.finditer(f'{line}decided which of them continued\n',
                                   text)
  assert at_once.start() < text.index('round 3/4') < in_report.start()
  first, second = rows_of(tmp_path)
  assert first['value'] == second['value'] and first['chosen'] == 'True'


def test_methods_of_a_file_get_the_same_trials(tmp_path):
  """For each task; those with personal models are chosen and tested by them."""
  (tmp_path / 'two.toml').write_text("""
tune = "random(trials=2)"
num_rounds = 1
partition = ["iid", "dirichlet(beta=1)"]
search = {learning_rate = "log(0.01, 0.1)"}
[[runs]]
algorithm = "fedavg"
[[runs]]
algorithm = "ditto"
search = {"algorithm.lam" = "log(0.01, 1)"}
""")
  words = [word for word in RUN if not word.startswith(
      ('--algorithm', '--num_rounds', '--partition'))]
  text = tune(tmp_path, 'two.toml', *words, '--client_eval=all',
              '--client_eval_every=1', '--client_test_fraction=0.3')
  rows = rows_of(tmp_path)
  arms = [f'{method} partition={partition}' for method in ('fedavg', 'ditto')
          for partition in ('iid', 'dirichlet(beta=1)')]
  assert [*dict.fromkeys(row['method'] for row in rows)] == arms
  trials, again = ({arm: [row for row in rows if row['method'] == arm
                          and bool(row['test']) == is_new] for arm in arms}
                   for is_new in (False, True))
  rates = [sorted(row['learning_rate'] for row in trials[arm]) for arm in arms]
  assert rates == [rates[0]] * 4 and len({*rates[0]}) == 2
  for arm, of_arm in trials.items():
    is_personal = arm.startswith('ditto')
    assert [bool(row['algorithm.lam']) for row in of_arm] == [is_personal] * 2
    assert [row['chosen'] for row in of_arm] == ['True', 'False']
    for row in of_arm:
      assert row['metric'] == (f'validation{"_personal" * is_personal}'
                               '_accuracy')
      last = small_runs.lines_of(tmp_path / row['workdir'])[-1]
      assert float(row['value']) == last[row['metric']]
  # Compared with FedAvg of the same task, in what ditto is chosen for.
  name = 'personal_heldout_accuracy'
  of_arm = lambda arm: np.array([
      small_runs.lines_of(tmp_path / row['workdir'])[-1][name]
      for row in again[arm]])
  _, differences = text.split('personal held-out accuracy\n')
  for base, arm in zip(arms[:2], arms[2:]):
    assert [float(row['test']) for row in again[arm]] == [*of_arm(arm)]
    mean = 100 * (of_arm(arm) - of_arm(base)).mean()
    assert f'{mean:+.2f}' in differences and base in differences
  assert 'p, Holm' in differences and '  3  ' in differences


def test_a_range_replaces_a_setting_of_a_file(tmp_path):
  """Names of arms do not show it. Flags do not replace ranges of a file."""
  (tmp_path / 'my.flags').write_text(
      '--algorithm=moon(mu=3, temperature=0.2)\n--server=sgd(momentum=0.8)\n')
  words = ['--flagfile=my.flags', *(
      word for word in RUN if not word.startswith('--algorithm')),
           '--tune=random(trials=2)', '--dry_run']
  text = tune(tmp_path, *words, '--search=server.momentum=uniform(0, 0.9)',
              '--search=algorithm.mu=log(0.1, 10)')
  assert '\nmoon(temperature=0.2): trials: 2' in text
  (tmp_path / 'my.toml').write_text(
      'learning_rate = 0.1\nsearch = {learning_rate = "log(0.1, 1)"}\n'
      '[[runs]]\nalgorithm = "fedavg"\n'
      '[[runs]]\nalgorithm = "fedavg"\nschedule = "step(every=2, decay=0.5)"\n'
      'search = {"schedule.decay" = "log(0.01, 1)"}\n')
  text = tune(tmp_path, 'my.toml', *words[1:])
  assert 'fedavg, fedavg schedule=step(every=2): trials: 2' in text
  done = inline.run('my.toml', *words[1:], '--learning_rate=0.2', cwd=tmp_path)
  assert ('my.toml: search.learning_rate and --learning_rate=0.2 exclude each '
          'other') in done.err


@pytest.mark.parametrize('metric, among, base', [
    ('test_accuracy', 'moon fedavg_ft fedavg', 'fedavg'),
    ('personal_heldout_accuracy', 'moon fedavg fedavg_ft', 'fedavg_ft'),
    ('personal_heldout_accuracy', 'moon fedavg', 'fedavg'),
    ('personal_heldout_accuracy', 'moon ditto', 'moon')])
def test_baseline_of_a_metric(metric, among, base):
  """Of the same task; FedAvg is fine-tuned where models are personal."""
  tuner = mj.Tuner({'learning_rate': [.1]}, 'random(trials=1)', 1)
  tasks = [[Arm(f'{name} {split}', mj.Config(algorithm=name, partition=split),
                tuner) for name in among.split()]
           for split in ('iid', 'shards')]
  arms = [arm for of_task in zip(*tasks) for arm in of_task]
  for split, of_task in zip(('iid', 'shards'), tasks):
    for arm in of_task:
      assert report.baseline(arm, arms, metric).name == f'{base} {split}'


@pytest.mark.parametrize('axes, changes, part', [
    ({}, {}, 'validation'),
    ({}, {'algorithm': 'fedper'}, 'validation_personal'),
    ({'algorithm': ['fedper', 'ditto']}, {}, 'validation_personal'),
    ({'algorithm': ['fedper', 'moon']}, {}, 'validation'),
    ({}, {'topology': 'ifca(clusters=2)'}, 'validation_personal'),
    ({'topology': ['ifca(clusters=2)', 'star']}, {}, 'validation'),
    ({}, {'algorithm': 'fedper', 'client_eval': 'cohort'}, 'validation'),
])
def test_what_clients_use_chooses(axes, changes, part):
  config = mj.Config(**{'client_eval': 'all', 'client_eval_every': 1,
                        'client_test_fraction': .2, **changes})
  calls = {kind: [parts.parse(kind, call) for call in given]
           for kind, given in axes.items()}
  tuner = mj.Tuner({'learning_rate': [.1], **calls}, 'random(trials=1)', 1)
  assert Arm('', config, tuner).part == part


def test_a_diverged_model_of_a_client_is_no_result():
  """Its run has ended, and its accuracy over clients is null."""
  tuner = mj.Tuner({'learning_rate': [.1]}, 'random(trials=1)', 1)
  tuner.tell(*tuner.ask(), .5)
  arm = Arm('ditto', mj.Config(algorithm='ditto'), tuner)
  tried, again = ([Tried(
      arm, trial, {'personal_heldout_accuracy': None}, 1.,
      'validation_personal_accuracy', 1)] for trial in (
          tuner.best, tuner.best._replace(settings={'seed': 1})))
  assert 'tested once: no result; 1 diverged' in report.text(
      [arm], tried, again)
  assert report.frame(tried, again)['test'].isna().all()


def test_rounds_of_a_trial_that_stopped_early_are_those_it_has_trained():
  tuner = mj.Tuner({'learning_rate': [.1]}, 'random(trials=1)', 9)
  tuner.tell(*tuner.ask(), .5)
  arm = Arm('fedavg', mj.Config(algorithm='fedavg', num_rounds=9), tuner)
  tried = [Tried(arm, tuner.best, {}, 1., 'validation_accuracy', 4)]
  assert 'after round 4, 50.00%' in report.text([arm], tried, [])
  assert report.frame(tried, [])['rounds_done'].tolist() == [4]


def test_a_metric_of_each_round_needs_no_evaluation():
  for metric, is_valid in (('train_loss', True), ('', False)):
    arm = Arm('fedavg', mj.Config(
        algorithm='fedavg', num_rounds=10, eval_every=3, num_clients=2,
        validation_fraction=.1), mj.Tuner(
            {'learning_rate': [.1, .2, .3]}, 'halving(eta=3, rungs=2)', 10))
    with (contextlib.nullcontext() if is_valid else pytest.raises(
        UserError, match='^eval_every=3 must divide .*; got 4. Give')):
      train.check([arm], metric)


def test_a_diverged_run_of_a_task_without_accuracy_has_none(tmp_path):
  """Also if it is that of the first new seed."""
  tuner = mj.Tuner({'learning_rate': [.1]}, 'random(trials=1)', 1)
  tuner.tell(*tuner.ask(), -.5)
  arm = Arm('fedavg', mj.Config(algorithm='fedavg', dataset='digits'), tuner)
  path = made_runs.write(tmp_path / 'run', algorithm='fedavg', seed=2)
  made_runs.remove_accuracies(path)
  tried, *again = [Tried(arm, trial, result, 1., 'validation_loss', 1)
                   for trial, result in (
      (tuner.best, {}),
      (Trial({'seed': 1}, 4), {'diverged': 'a NaN', 'rounds': 2}),
      (Trial({'seed': 2}, 4), {'test_loss': 2.75, 'workdir': str(path)}))]
  text = report.text([arm], [tried], again)
  assert 'test loss 2.7500 (n=1); 1 diverged' in text
  assert 'accuracy' not in text


def test_the_plan_of_a_tuning(tmp_path):
  done = inline.run(
      *TUNED, '--partition=iid', '--new_clients=0.33', '--client_eval=all',
      '--client_eval_every=2', '--client_test_fraction=0.25', '--dry_run',
      cwd=tmp_path)
  assert done.status == 0, done.err
  assert ('\nfedavg: trials: 4 up to round 1, 2 up to round 2, 1 up to round '
          '4, 8 rounds; new seeds: 1 up to round 4, 4 rounds\n') in done.out
  # 4 clients with 15 held-out examples each, half for validation: those of the
  # global model, then two batches per client, and two of the new one.
  assert ('2 times, each 180 forward passes of examples and 2 steps of 1 new '
          'client') in done.out
  assert not (tmp_path / 'runs').exists()


def test_trials_that_follow_have_the_rounds_until_they_pause(tmp_path):
  config = mj.Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_rounds=4,
      train_examples=300, num_clients=3, validation_fraction=.2)
  arm = Arm('', config, mj.Tuner(
      {'learning_rate': [.1, .2, .3, .4]}, 'halving(eta=2, rungs=2)', 4))
  trials = Trials([(arm, x) for x in arm.tuner.ask()], str(tmp_path / 'runs'))
  units = trials.planned(max_runs=2)
  path = trials.runs[units[1][0]].workdir.path
  path.mkdir(parents=True)
  (path / 'metrics.jsonl').write_text('{"round": 1}\n')
  assert trials._place(units, units[0])['rounds_later'] == 1 + 2


@pytest.mark.parametrize('words, message', [
    (['--validation_fraction=0'],
     'validation_fraction=0.0 must be above 0.*Give --validation_fraction=0.1'),
    (['--tune=halving(metric=test_accuracy)'], 'reads no test data'),
    (['--algorithm=moon', '--search=algorithm.muu=log(0.1, 1)'],
     '--search algorithm.muu=log.*has the arguments.*Did you mean mu'),
    (['--search=optimizer.momentum=uniform(0, 1)'],
     '--search optimizer.momentum=.*must be below 1; got 1'),
    (['--search=local_epochs=log(1, 9)'],
     '--search local_epochs=.*must be an integer.*Write integer'),
    (['--search=partition.beta=log(0.1, 1)'], 'partition.beta is not tuned'),
    (['--tune=halving(eta=2, rungs=2, metric=validation_personal_accuracy)',
      '--grid=learning_rate=0.1,0.2'], 'needs held-out examples of all'),
    (['--search=learning_rat=log(0.1, 1)'], "nearest is 'learning_rate'"),
    (['--search=learning_rate=log(0, 1)'], 'must have numbers above 0; got 0'),
    (['--search=learning_rate=log(1, 0.1)'], 'the lower number first'),
    (['--search=learning_rate=normal(0, 1)'], r'must be log\(A, B\)'),
    (['--search=learning_rate'],
     r"must be NAME=RANGE.*Write --search 'learning_rate=log\(0.001,0.3\)'"),
    (['--search=seed=integer(0, 9)'], 'seed is not tuned.*new seeds'),
    (['--grid=partition_seed=1,2'], 'partition_seed is not tuned'),
    (['--grid=learning_rate=0.1,0.2', '--tune=halving(eta=2, rungs=3)'],
     r'train: --tune=halving\(eta=2, rungs=3\) needs 4 trials or more.*'
     'got 2. Give fewer rungs'),
    (['--grid=learning_rate=0.1,0.2', '--tune=halving(eta=2, rungs=4)',
      '--num_rounds=7'], 'needs 8 trials or more'),
    (['--tune=halving(eta=2, rungs=4)',
      '--search=learning_rate=log(0.1, 1)'], 'needs --num_rounds of 8 or more'),
    (['--tune=halving(eta=1)'], ': eta must be at least 2; got 1'),
    (['--tune=halve'], 'tune must be one of halving, random, optuna'),
    (['--tune=random(trials=3)', '--grid=learning_rate=0.1,0.2'],
     'train: a search of 3 trials needs as many combinations of values; got 2'),
    (['--tune=random(trials=2)'], 'needs settings to choose from'),
    (['--tune=halving(eta=2, rungs=2)', '--grid=learning_rate=0.1,0.2',
      '--eval_every=3'], 'eval_every=3 must divide the rounds after which .*'
     'got 2. Give --eval_every=1'),
    (['--tune=halving(eta=2, rungs=2)', '--grid=learning_rate=0.1,0.2',
      '--num_rounds=6', '--eval_every=2'], 'every=2 must div.*got 3. Give'),
    (['--tune=halving(eta=2, rungs=2)', '--grid=learning_rate=0.1,0.2',
      '--num_rounds=6', '--algorithm=ditto', '--client_eval=all',
      '--client_test_fraction=0.3', '--client_eval_every=2'],
     'client_eval_every=2 must divide.*got 3. Give'),
    (['--tune=halving(eta=2, rungs=2)', '--grid=learning_rate=0.1,0.2',
      '--checkpoint_every=0'], 'trials continue from checkpoints'),
    (['--learning_rate=0.3', '--search=learning_rate=log(0.1, 1)'],
     r'--search learning_rate=log\(0.1, 1\) and --learning_rate=0.3 exclude'),
    (['--algorithm=moon', '--algorithm.mu=3',
      '--search=algorithm.mu=log(0.1, 1)'], 'and --algorithm.mu=3 exclude'),
    (['--algorithm=moon(mu=3)', '--search=algorithm.mu=log(0.1, 1)'],
     r'and --algorithm=moon\(mu=3\) exclude'),
    (['--grid=learning_rate=0.1,0.2', '--search=learning_rate=log(0.1, 1)'],
     'and --grid learning_rate exclude each other; got both. Remove one'),
    (['--tune=', '--search=learning_rate=log(0.1, 1)'], 'needs --tune'),
])
def test_what_cannot_be_tuned(words, message, tmp_path):
  done = inline.run(*RUN, '--tune=halving(eta=2, rungs=2)', *words,
                    cwd=tmp_path)
  assert done.status == 2
  assert len(done.err.strip().splitlines()) <= 2
  assert not (tmp_path / 'runs').exists()
  assert re.search(message, done.err), done.err


@pytest.mark.parametrize('tune, shown', [
    ('halving(eta=2, rungs=3)', 'halving(eta=2, rungs=3, trials=4)'),
    ('halving(rungs=2)', 'halving(rungs=2, trials=3)')])
def test_a_number_of_trials_that_all_methods_can_have(tune, shown):
  config = mj.Config(dataset='digits', validation_fraction=.2, num_rounds=4)

  def arms(tune):
    return [Arm(f'arm{count}', config, mj.Tuner(
        {'learning_rate': [.1 * (i + 1) for i in range(count)]}, tune, 4))
            for count in (5, 4)]

  with pytest.raises(UserError, match='5 of arm5, 4 of arm4.*'
                     + re.escape(f"--tune='{shown}'")):
    train.check(arms(tune), '')
  train.check(arms(shown), '')


def asked(tuner, value_of, order=reversed):
  """Returns batches of (settings, rounds) that a tuner asks for."""
  batches = []
  while trials := tuner.ask():
    batches.append([(trial.settings, trial.rounds) for trial in trials])
    for trial in order(trials):
      tuner.tell(trial, value_of(trial.settings))
  return batches


def test_halving_of_a_grid():
  tuner = mj.Tuner({'a': [1, 2, 3], 'b': [0., .5, 1.]},
                   'halving(eta=3, rungs=3)', num_rounds=10)
  batches = asked(tuner, lambda x: None if x['a'] == 3 else x['a'] + x['b'])
  assert [len(batch) for batch in batches] == [9, 3, 1]
  assert [batch[0][1] for batch in batches] == [2, 4, 10]
  assert [*map(str, (x for x, _ in batches[1]))] == [
      str({'a': a, 'b': b}) for a, b in ((2, 1.), (2, .5), (1, 1.))]
  (rounds, equal), = tuner.ties().items()
  assert rounds == 2 and sorted(equal, key=lambda trial: trial.settings['a']
                                ) == [Trial({'a': 1, 'b': 1.}, 2, 2.),
                                      Trial({'a': 2, 'b': 0.}, 2, 2.)]
  assert tuner.best.settings == {'a': 2, 'b': 1.} and tuner.best.value == 3
  assert tuner.edges(tuner.best.settings) == ['b']


def test_ties_are_those_that_an_order_decided():
  """Two stop equal in the first stage, and two end equal in the last one."""
  tuner = mj.Tuner({'a': [1, 2, 3, 4]}, 'halving(eta=2, rungs=2)', num_rounds=4)
  while trials := tuner.ask():
    assert tuner.ties() == {}
    for trial in trials:
      tuner.tell(trial, max(trial.settings['a'], 2) if trial.rounds < 4 else 5)
  assert {rounds: [trial.settings['a'] for trial in equal]
          for rounds, equal in tuner.ties().items()} == {4: [4, 3]}


def test_a_setting_that_diverges_on_a_later_rung_is_not_chosen():
  tuner = mj.Tuner({'a': [1, 2, 3]}, 'halving(eta=3, rungs=2)', num_rounds=9)
  arm = Arm('fedavg', mj.Config(algorithm='fedavg'), tuner)
  tried = {}
  while trials := tuner.ask():
    for trial in trials:
      value = None if trial.rounds == 9 else float(trial.settings['a'])
      tuner.tell(trial, value)
      tried[str(trial.settings)] = Tried(
          arm, trial._replace(value=value), {}, 1., 'validation_accuracy',
          trial.rounds)
  assert tuner.best == Trial({'a': 2}, 3, 2.)
  frame = report.frame([*tried.values()], [])
  assert [*frame['a'][frame['chosen']]] == [2]


def test_random_draws_are_seeded_and_in_their_ranges():
  search = {'rate': 'log(0.001, 1)', 'n': 'integer(1, 3)',
            'p': 'uniform(-1, 1)', 'word': 'choice(x, y)'}
  draw = lambda names, seed: [x for batch in asked(mj.Tuner(
      {name: search[name] for name in names}, 'random(trials=60)',
      seed=seed), lambda _: 0.) for x, _ in batch]
  drawn = draw(search, 0)
  assert drawn == draw(search, 0) != draw(search, 1)
  rates, counts, shares, words = zip(*(x.values() for x in drawn))
  assert .001 <= min(rates) and max(rates) <= 1
  assert .2 < np.mean(np.array(rates) < .001 ** .5) < .8  # log-uniform
  assert {*counts} == {1, 2, 3} and {*words} == {'x', 'y'}
  assert -1 <= min(shares) < -.5 and .5 < max(shares) <= 1
  # Another method that shares a range tries the same values of it.
  assert [x['rate'] for x in draw(['rate'], 0)] == list(rates)


def test_methods_that_share_an_axis_get_the_same_draws():
  search = {'rate': 'log(0.001, 1)', 'n': 'integer(1, 12)',
            'word': 'choice(a, b, c, d, e, f, g, h)'}
  draw = lambda *names: [trial.settings for trial in mj.Tuner(
      {name: search[name] for name in names}, 'random(trials=8)').ask()]
  for name in search:
    values = [settings[name] for settings in draw(name)]
    assert len({*values}) == 8
    for other in search:
      assert [settings[name] for settings in draw(other, name)] == values


def test_draws_of_a_grid_are_all_of_its_combinations():
  tuner = mj.Tuner({'a': [1, 2, 3], 'b': [*range(6)]}, 'random(trials=18)')
  assert len({str(trial.settings) for trial in tuner.ask()}) == 18


def test_a_function_of_the_history_decides():
  def climb(history):
    if len(history) == 4:
      return []
    return {'x': max((trial.value, trial.settings['x'])
                     for trial in history)[1] * 2 if history else 1}

  tuner = mj.Tuner({}, climb, num_rounds=5)
  batches = asked(tuner, lambda x: -abs(x['x'] - 4))
  assert batches == [[({'x': x}, 5)] for x in (1, 2, 4, 8)]
  assert tuner.best.settings == {'x': 4}
  with pytest.raises(mj.UserError, match='that ask.. has returned'):
    tuner.tell(tuner.best, 1.)
  with pytest.raises(mj.UserError, match='must return settings.*got 5'):
    mj.Tuner({}, lambda history: 5).ask()
  again = mj.Tuner({}, lambda history: {'x': 1})
  with pytest.warns(UserWarning, match="only settings that were tried.*'x': 1"):
    assert asked(again, lambda x: 0.) == [[({'x': 1}, 100)]]


def test_own_functions_of_a_command(tmp_path):
  (tmp_path / 'mine.py').write_text(
      'def search(history, count=2):\n'
      '  if len(history) == count:\n    return []\n'
      "  return [{'learning_rate': 1e25 if history else .01}]\n")
  words = [*RUN, '--num_rounds=1', '--tune_seeds=0', '--workdir=runs']
  text = tune(tmp_path, *words, '--tune=mine:search(count=2)', '--dry_run')
  assert text.startswith('mine:search: rounds in all: 1\nfedavg: trials: 1, '
                         'and those that mine:search asks for later')
  done = inline.run(*words, '--tune=mine:search(count=0)', cwd=tmp_path)
  assert done.status == 2 and 'tune must ask for a trial; got []' in done.err
  text = tune(tmp_path, *words, '--tune=mine:search(count=2)')
  chosen, diverged = rows_of(tmp_path)
  assert chosen['learning_rate'] == '0.01' and chosen['chosen'] == 'True'
  assert diverged['learning_rate'] == '1e+25'
  assert not diverged['value']
  assert 'fedavg: 2 trials' in text


def test_optuna_is_asked_and_asked():
  pytest.importorskip('optuna')
  search = {'x': 'uniform(-1, 1)', 'n': 'integer(0, 3)', 'w': ['a', 'b']}
  value = lambda x: None if x['n'] == 3 else -abs(x['x'] - .5) - x['n']
  found = [asked(mj.Tuner(search, 'optuna(trials=24, batch=8)'), value, order)
           for order in (reversed, list)]
  assert found[0] == found[1]  # whatever the order of answers
  assert [len(batch) for batch in found[0]] == [8, 8, 8]
  best = lambda batch: max(value(x) or -9 for x, _ in batch)
  assert best(found[0][2]) > -.5


def test_a_tuner_trains_in_the_places_of_a_program():
  federation = tiny_federation.make(
      clients=np.split(np.arange(16), [5, 10]), validation=np.arange(16, 19))
  of = lambda settings: dataclasses.replace(federation, **settings)
  tuner = mj.Tuner({'learning_rate': [.01, .1, .5, 1.]},
                   'halving(eta=2, rungs=2, metric=validation_loss)', 4)
  program = Program([federation] * 2)
  best = tuner.train(program, of, 'validation_loss')
  assert [len([x for x in tuner.history if x.rounds == rounds])
          for rounds in (2, 4)] == [4, 2]
  assert best.value == max(x.value for x in tuner.history if x.rounds == 4)
  line = mj.Simulation(of(best.settings)).run(4)[-1]
  assert best.value == -line.metrics['validation_loss']


def test_trials_on_disk_and_with_an_infinite_loss():
  """Client state on disk continues; a loss that is not finite ends no search.
  """
  federation = tiny_federation.make(
      clients=np.split(np.arange(16), [5, 10]), validation=np.arange(16, 19),
      algorithm=mj.moon(), client_state='disk', local_steps=1)
  of = lambda settings: dataclasses.replace(federation, **settings)
  # The loss of the last one is that of a step before its only change.
  tuner = mj.Tuner({'learning_rate': [.01, .1, .5, 1e30]},
                   'halving(eta=2, rungs=2)', 4)
  program = Program([federation] * 2)
  best = tuner.train(program, of, 'validation_loss')
  assert [x.value is None for x in tuner.history] == [False] * 3 + [
      True] + [False] * 2
  line = mj.Simulation(of(best.settings)).run(4)[-1]
  # A round of several runs may round otherwise than that of one.
  assert best.value == pytest.approx(-line.metrics['validation_loss'])
  for metric in 'train_loss', 'global_train_loss':  # no evaluation has them
    tuner = mj.Tuner({'learning_rate': [.01]}, 'random(trials=1)', 1)
    with pytest.raises(mj.UserError, match=f'got {metric}.*validation_'):
      tuner.train(program, of, metric)


def test_errors_and_losses_are_the_better_the_lower():
  assert [sign_of(f'validation_{name}') for name in (
      'accuracy', 'exact_match', 'personal_accuracy_worst_tenth', 'loss', 'mse',
      'perplexity', 'ece_worst', 'accuracy_std')] == [1] * 3 + [-1] * 5
