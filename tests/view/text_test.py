"""Numbers as text have the unit and the width that are asked for."""

import pytest

from moon_jax.view import text


@pytest.mark.parametrize('name, value, expected', [
    ('test_accuracy', .98765, '98.77%'), ('test_accuracy_std', .01, '1.00%'),
    ('test_loss', .98765, '0.9877'), ('drift', 123456., '1.23e+05')])
def test_accuracies_are_in_percent(name, value, expected):
  assert text.metric(name, value) == expected


@pytest.mark.parametrize('values, width, expected', [
    ([1.], 5, '▁'), ([1., 1.], 5, '▁▁'), ([0., 7.], 5, '▁█'),
    (range(8), 8, '▁▂▃▄▅▆▇█'), (range(16), 8, '▁▂▃▄▅▆▇█'),
    ([0., 0., 10., 0.], 2, '▁█')])
def test_spark_lines(values, width, expected):
  assert text.spark_line(list(values), width) == expected


@pytest.mark.parametrize('seconds, expected', [
    (0, '0 s'), (59.9, '59 s'), (60, '1:00'), (3599, '59:59'),
    (3600, '1:00:00'), (360000, '100:00:00')])
def test_durations(seconds, expected):
  assert text.duration(seconds) == expected


@pytest.mark.parametrize('label, widths, lines', [
    ('FedAvg, rate 0.005, rounds 10', (20,), ['FedAvg, rate 0.005,',
                                              'rounds 10']),
    ('FedAvg, privacy client(clip=1, noise_multiplier=0.3)', (16, 22), [
        'FedAvg,', 'privacy client(', 'clip=1,', 'noise_multiplier=0.3)']),
    ('FedAvg, privacy client(noise_multiplier=0.3)', (18,), [
        'FedAvg, privacy', 'client(noise_', 'multiplier=0.3)']),
    ('cohort power_of_choice(candidates=60)', (30,), [
        'cohort power_of_choice(', 'candidates=60)']),
    ('directory/file_name.npz', (12,), ['directory/', 'file_name.', 'npz']),
    ('Ours', (16,), ['Ours']),
    ('FedAvg, privacy none (n=3)', (16, 22), [
        'FedAvg,', 'privacy none', '(n=3)'])])
def test_lines_of_labels_end_between_settings(label, widths, lines):
  """Then between words, and within names only where no line would fit."""
  assert text.label_lines(label, *widths) == lines
