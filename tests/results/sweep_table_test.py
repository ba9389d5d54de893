"""The table of a sweep."""

import dataclasses

import numpy as np
import pytest

import moon_jax as mj
from moon_jax.results import sweep_table
from moon_jax.runs.grid import Sweep
from moon_jax.runs.values import columns as columns_of

BASE = mj.Config(dataset='digits', num_rounds=7)
MU = {'algorithm.mu': [1, 5]}


def summary(accuracy, best=None, rounds=7):
  return {'test_accuracy': accuracy, 'best_test_accuracy': best or accuracy,
          'rounds': rounds}


def cells(text):
  return [[cell.strip() for cell in line.strip('| ').split(' | ')]
          for line in text.splitlines() if line.startswith('|')]


def test_rows_have_mean_and_sample_deviation_over_seeds():
  sweep = Sweep.grid(BASE, **MU, seed=[0, 1, 2])
  accuracies = np.array([[.5, .52, .58], [.61, .6, .63]])
  text = sweep_table.markdown(sweep, [
      summary(a, a + .1) for a in accuracies.ravel()])
  header, _, *rows = cells(text)
  assert header == ['algorithm.mu', 'n', 'rounds_done', 'test accuracy (%)',
                    'best test accuracy (%)']
  for row, mu, values in zip(rows, '15', 100 * accuracies, strict=True):
    std = f'± {np.std(values, ddof=1):.1f}'
    assert row == [mu, '3', '7', f'{values.mean():.1f} {std}',
                   f'{values.mean() + 10:.1f} {std}']
  assert len(text.splitlines()) == 4


def test_unfinished_and_diverged_runs_are_counted_and_named():
  sweep = Sweep.grid(BASE, **MU, seed=[0, 1, 2])
  text = sweep_table.markdown(sweep, [
      summary(.5), None, summary(.7, rounds=4),
      {'diverged': 'a loss\nis | NaN', 'rounds': 2}, None, None])
  first, second = cells(text)[2:]
  assert first == ['1', '2 of 3', '4 to 7', '60.0 ± 14.1', '60.0 ± 14.1']
  assert second[:2] == ['5', '0 of 3 (1 diverged)'] and not any(second[2:])
  assert text.splitlines()[-2:] == [
      '', '- diverged after 2 rounds, algorithm.mu=5 seed=0: a loss is | NaN']


def test_values_that_agree_in_six_digits_have_rows_of_their_own():
  sweep = Sweep.grid(BASE, learning_rate=[.012345678, .012345679], seed=[0, 1])
  rows = cells(sweep_table.markdown(sweep, [summary(.5)] * 4))[2:]
  assert [row[:2] for row in rows] == [
      ['0.012345678', '2'], ['0.012345679', '2']]


def test_an_argument_that_a_function_does_not_have_is_a_dash():
  """Calls are shown without arguments that have a column."""
  sweep = (Sweep.grid(BASE, algorithm=['fedavg'], seed=[0, 1]) |
           Sweep.grid(BASE, algorithm=['moon', 'moon(num_negatives=2)'], **MU,
                      seed=[0, 1]))
  rows = cells(sweep_table.markdown(sweep, [None] * 10))
  assert [row[:3] for row in [rows[0], *rows[2:]]] == [
      ['algorithm', 'algorithm.mu', 'n'], ['fedavg', '–', '0 of 2'],
      ['moon(num_negatives=1)', '1', '0 of 2'],
      ['moon(num_negatives=1)', '5', '0 of 2'],
      ['moon(num_negatives=2)', '1', '0 of 2'],
      ['moon(num_negatives=2)', '5', '0 of 2']]


def test_calls_have_the_arguments_in_which_they_differ_also_defaults():
  sweep = Sweep.grid(BASE, algorithm=['fedavg', 'moon(mu=1)', 'moon'])
  assert [row[0] for row in cells(sweep_table.markdown(sweep, [None] * 3))] == [
      'algorithm', '---', 'fedavg', 'moon(mu=1)', 'moon(mu=5)']


def test_seeds_alone_are_one_row():
  sweep = Sweep.grid(BASE, seed=[0, 1], partition_seed=[0, 1])
  text = sweep_table.markdown(sweep, [summary(a) for a in (.1, .2, .3, .4)])
  assert [row[:2] for row in cells(text)] == [
      ['n', 'rounds_done'], ['---:', '---:'], ['4', '7']]


@pytest.mark.parametrize('change, columns', [
    (dict(algorithm='fedprox'), ['algorithm']),
    (dict(algorithm='moon(mu=1)'), ['algorithm.mu']),
    (dict(partition='dirichlet(beta=0.1)'), ['partition.beta']),
    (dict(partition='iid', algorithm='moon(mu=1)'),
     ['partition', 'algorithm.mu']),
    (dict(learning_rate=.1), ['learning_rate']),
    (dict(lanes=2, checkpoint_every=3), []),
])
def test_settings_in_which_grids_differ_are_columns(change, columns):
  """Otherwise rows of different runs would be averaged."""
  sweep = (Sweep.grid(BASE, early_stopping=[0]) |
           Sweep.grid(dataclasses.replace(BASE, **change), seed=[1]))
  assert columns_of(sweep.configs, sweep.axes) == [
      *columns, 'early_stopping']


def test_directories_are_listed_by_settings():
  sweep = Sweep.grid(
      mj.Config(dataset='digits'), **MU, seed=[0, 1])
  found = [{'rounds': 2, 'workdir': f'runs/{i}'} for i in range(3)] + [None]
  assert sweep_table.directories(sweep, found).splitlines() == [
      '- algorithm.mu=1 seed=0: `runs/0`', '- algorithm.mu=1 seed=1: `runs/1`',
      '- algorithm.mu=5 seed=0: `runs/2`']


def test_each_block_of_a_narrow_terminal_names_its_rows():
  """By all settings in which runs differ; calls break after punctuation."""
  sweep = Sweep.grid(
      BASE, algorithm=['fedavg', 'pfedme(personal_learning_rate=0.1)'],
      learning_rate=[.005, .003])
  lines = sweep_table.table(sweep, [summary(.5)] * 4).text(60)
  first, second = '\n'.join(lines).split('\n\n')
  for block in first, second:
    assert block.count('fedavg') == 2
    assert block.count('0.005') == block.count('0.003') == 2
    assert block.count('rate=0.1)') == 2 and 'pfedme(' in block
  assert 'best' in second and 'best' not in first
  assert max(map(len, lines)) <= 60
