"""The view fits terminals of every size."""

import pytest

from moon_jax.view import screen
from moon_jax.view.status import Status


def status(num_runs=1, rounds=5):
  found = Status('digits, moon, seed 0: runs/digits-moon-0123abcd', 0.,
                 num_runs=num_runs).training(20 * num_runs, 0, (), 10.)
  for number in range(1, rounds + 1):
    found = found.after_rounds(
        [{'round': number, 'seconds': 2., 'examples_per_second': 12345.,
          'test_accuracy': number / 8, 'train_loss': 2. - number / 4,
          'drift': 12345.678, 'users_metric': -1e-9}] * num_runs,
        10. + 2 * number, .93, {'memory': 1_234_567_890})
  return found.doing(f'round {rounds + 1}: training', 20.)


def text(state, width=80, height=24, now=23., is_unicode=True):
  return [line.plain for line in screen.render(
      state, width, height, now, is_unicode)]


def test_at_80_columns():
  assert text(status()) == [
      'digits, moon, seed 0: runs/digits-moon-0123abcd',
      'round 5 of 20 ' + '━' * 12 + '─' * 38 + '  25%  27 s left',
      'round 6: training' + ' ' * 60 + '3 s',
      'test accuracy    0.6250  ▁▃▅▇█  best 0.6250 after round 5',
      'train loss       0.7500  █▇▅▃▁',
      'drift          1.23e+04  ▁▁▁▁▁',
      'users metric    -0.0000  ▁▁▁▁▁',
      '12,345 examples/s, 2.0 s per round, lanes 93% used, memory 1.2 GB']


@pytest.mark.parametrize('width', [*range(1, 12), 20, 33, 50, 79, 80, 140, 300])
@pytest.mark.parametrize('height', [1, 5, 8, 50])
def test_no_line_is_too_wide_and_no_view_too_high(width, height):
  for state in (status(), status(3), status(rounds=0), status(rounds=1000)):
    lines = screen.render(state, width, height, 23.)
    assert len(lines) <= max(height - 1, 1)
    assert all(line.cell_len <= width for line in lines)


def test_wide_characters_count_twice():
  state = Status('数' * 60, 0.).doing('数' * 60, 0.)
  assert all(line.cell_len <= 80 for line in screen.render(state, 80, 24, 0.))


def test_without_unicode_it_is_ascii():
  assert all(line.isascii() for line in text(status(), is_unicode=False))
  assert all(line.isascii()
             for line in text(status(), width=30, is_unicode=False))


def test_several_runs():
  lines = text(status(3))
  assert lines[1].startswith('15 of 60 rounds of 3 runs ━')
  assert lines[3].endswith('▁▃▅▇█  0.6250 to 0.6250')


@pytest.mark.parametrize('values, width, expected', [
    ([1.], 5, '▁'), ([1., 1.], 5, '▁▁'), ([0., 7.], 5, '▁█'),
    (range(8), 8, '▁▂▃▄▅▆▇█'), (range(16), 8, '▁▂▃▄▅▆▇█'),
    ([0., 0., 10., 0.], 2, '▁█')])
def test_spark_lines(values, width, expected):
  assert screen.spark_line(list(values), width) == expected


@pytest.mark.parametrize('seconds, expected', [
    (0, '0 s'), (59.9, '59 s'), (60, '1:00'), (3599, '59:59'),
    (3600, '1:00:00'), (360000, '100:00:00')])
def test_durations(seconds, expected):
  assert screen.duration(seconds) == expected


@pytest.mark.parametrize('num_bytes, expected', [
    (0, '0 B'), (999, '999 B'), (1000, '1 kB'), (1.25e6, '1.2 MB'),
    (80e9, '80.0 GB'), (2e12, '2.0 TB')])
def test_sizes(num_bytes, expected):
  assert screen.size(num_bytes) == expected
