"""Curves as text have the width and height that are asked for."""

import pytest

from moon_jax.view import curves

LINE = [(t, t / 10) for t in range(1, 11)]


@pytest.mark.parametrize('is_unicode', [True, False])
@pytest.mark.parametrize('width, height', [(30, 5), (80, 12)])
def test_a_rising_curve_rises(width, height, is_unicode):
  lines = curves.draw([LINE], width, height, is_unicode)
  assert len(lines) == height + 2 and max(map(len, lines)) <= width
  plot = lines[:height]
  mark = '•' if is_unicode else '*'
  firsts = [row.index(mark) for row in plot if mark in row]
  assert firsts == sorted(firsts, reverse=True) and len(firsts) == height
  assert plot[0].split()[0] == '1' and plot[-1].split()[0] == '0.1'
  assert lines[-1].split() == ['1', '10']
  assert is_unicode or ''.join(lines).isascii()


def test_equal_curves_take_turns():
  lines = curves.draw([LINE, LINE], 40, 5)
  assert 'ab' in ''.join(lines) and '•' not in ''.join(lines)
  counts = [''.join(lines).count(mark) for mark in 'ab']
  assert abs(counts[0] - counts[1]) <= 1


def test_curves_end_where_their_points_end():
  short = [(1, .1), (5, .1)]
  lines = curves.draw([LINE, short], 60, 7)
  assert lines[6].rindex('b') < 40 and lines[0].rindex('a') > 50


def test_odd_curves_are_drawn():
  assert curves.draw([[], []]) == []
  for points in [(3, .5)], [(1, .5), (2, .5)]:
    lines = curves.draw([points, []], 40, 5)
    assert 'a' in ''.join(lines) and len(lines) == 7


@pytest.mark.parametrize('values, width, expected', [
    ([1.], 5, '▁'), ([1., 1.], 5, '▁▁'), ([0., 7.], 5, '▁█'),
    (range(8), 8, '▁▂▃▄▅▆▇█'), (range(16), 8, '▁▂▃▄▅▆▇█'),
    ([0., 0., 10., 0.], 2, '▁█')])
def test_spark_lines(values, width, expected):
  assert curves.spark_line(list(values), width) == expected


@pytest.mark.parametrize('seconds, expected', [
    (0, '0 s'), (59.9, '59 s'), (60, '1:00'), (3599, '59:59'),
    (3600, '1:00:00'), (360000, '100:00:00')])
def test_durations(seconds, expected):
  assert curves.duration(seconds) == expected
