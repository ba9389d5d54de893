"""What a summary says of the rounds, and a round of the privacy spent."""

import contextlib
import shlex
import types

import pytest

from moon_jax.config import Config
from moon_jax.data import rounds
from moon_jax.runs import recorder
from moon_jax.runs import summary as summary_lib
from moon_jax.simulation import accounting
from moon_jax.simulation.records import RoundRecord
from support import inline

ACCURACIES = (.1, .9, None, .3, .4, .5, .6, .7)


def test_a_summary_is_of_the_last_rounds():
  lines = [{'round': t, 'seconds': t, 'examples_per_second': 10 * t} | (
      {} if a is None else {'test_accuracy': a, 'test_loss': 1 - a})
           for t, a in enumerate(ACCURACIES, 1)]
  lines[2]['clients_left_out'] = [4, 5]
  lines[6]['clients_left_out'] = [4]
  lines[-1]['other_accuracy'] = .2
  # Clients are evaluated in other rounds, maybe not in the last one.
  lines[1] |= {'global_heldout_accuracy': .5, 'local_heldout_accuracy': .75}
  lines[5]['global_heldout_accuracy'] = .25
  found = summary_lib.summarize(Config(num_rounds=8), types.SimpleNamespace(
      federation=types.SimpleNamespace(
          metrics={}, test_sets={'other': ()},
          clients=[[0], [1, 2, 3], range(4, 12)]),
      num_parameters=7, num_lanes=2, bytes_per_round=lambda: 56,
      flops=lambda: (2.5, 5.),
      bytes_between_servers=lambda: 8), lines)
  expected = {
      'rounds': 8, 'test_accuracy': .7, 'test_loss': pytest.approx(.3),
      'other_accuracy': .2, 'best_test_accuracy': .9, 'best_round': 2,
      'mean_test_accuracy_of_last_5': pytest.approx(.5),
      'clients_left_out': 3, 'seconds_per_round': 4.5,
      'examples_per_second': 45, 'num_parameters': 7, 'lanes': 2,
      'arithmetic': 'float32', 'client_examples_mean': 4.,
      'client_examples_std': pytest.approx((26 / 3) ** .5),
      'global_heldout_accuracy': .25, 'local_heldout_accuracy': .75,
      'flops_per_client': 2, 'flops_per_round': 5,
      'bytes_per_round': 56, 'bytes_between_servers': 8}
  assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize('aggregation, rule', [
    ('average', 'give --aggregation, such as median'),
    pytest.param('trimmed_mean', 'choose another --aggregation than '
                 'trimmed_mean', marks=pytest.mark.long)])
def test_a_run_that_diverges_under_attack_is_told_of_the_attack_first(
    aggregation, rule, tmp_path):
  done = inline.run(*shlex.split(
      '--dataset=digits --model=mlp --algorithm=fedavg --num_clients=4 '
      '--num_rounds=1 --local_epochs=1 --learning_rate=1e30 --partition=iid '
      '--attack=scaling(attackers=0.25) --workdir=run '
      f'--aggregation={aggregation}'), cwd=tmp_path)
  assert done.status == 1
  places = [done.err.index(words) for words in (
      'moon_jax.train: round 1, client ',
      '--algorithm=fedavg --learning_rate=1e+30',
      '--attack=scaling(attackers=0.25)', rule, 'Lower --learning_rate')]
  assert places == sorted(places)


@pytest.mark.parametrize('arguments, words', [
    ('', 'float32'), ('(dtype=bfloat16)', 'bfloat16'),
    ('(precision=tf32)', 'float32 with products of precision tf32')])
def test_the_arithmetic_of_a_run(arguments, words):
  config = Config(model=f'simple_cnn{arguments}')
  assert summary_lib.arithmetic(config) == words


@pytest.mark.parametrize('every, due', [
    (0, []), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_the_last_round_is_always_due(every, due):
  """To be evaluated and saved; never where it is never."""
  config = Config(num_rounds=5)
  assert [t for t in range(1, 6)
          if recorder.is_due(every, t, config)] == due


def test_a_round_has_spent_what_the_rounds_up_to_it_have():
  config = Config(
      algorithm='fedavg', weighting='uniform',
      privacy='client(clip=1, noise_multiplier=4)', num_rounds=3)
  cohorts = [[0, 1], [1, 2], [1, 3]]
  for done in 1, 2, 3:
    simulation = types.SimpleNamespace(
        rounds_done=done, federation=types.SimpleNamespace(
            rounds=rounds.listed(cohorts), num_test=9, metrics={}),
        state=types.SimpleNamespace(history=()),
        evaluate=lambda wait: {'test_accuracy': .5})
    line = recorder.metrics_line(
        config, simulation,
        RoundRecord({'train_loss': 1.}, {}, num_examples=30, seconds=2.),
        types.SimpleNamespace(call=None),
        types.SimpleNamespace(busy=lambda _: contextlib.nullcontext()))
    assert line['epsilon'] == accounting.epsilon(
        config, most_visits=done, num_rounds=done)  # of client 1
    assert line['examples_per_second'] == 15
  assert line['epsilon'] > accounting.epsilon(config, 1, 1)
