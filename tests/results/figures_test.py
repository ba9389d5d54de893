"""Figures show the numbers, in constant colours."""

import re
import sys

import numpy as np
import pytest

from moon_jax.results import figures
from moon_jax.results.figures import Line
import page_checks

NAN = np.nan


@pytest.fixture
def drawn(monkeypatch):
  """Functions that return SVG text return the figure instead."""
  def draw(fill, height, name):
    figure = figures.empty(4, height)
    fill(figure)
    return figure

  monkeypatch.setattr(figures, 'svg', draw)


def curves(lines):
  return figures.curves({'digits': lines}, 'accuracy (%)', 'c')


def legend(figure):
  return [text.get_text() for text in figure.legends[0].get_texts()]


def test_curves_are_means_and_bands(drawn):
  curves_ST = np.array([[1., NAN, 2, 8, 4], [3., 9, 4, NAN, 8]])
  figure = curves([Line('MOON', 'moon', curves_ST, published=3.),
                   Line('FedAvg', 'fedavg', curves_ST[:1] + 1),
                   Line('None', 'solo', np.full((2, 3), NAN))])
  axes, = figure.axes
  moon, published, fedavg, _ = axes.lines
  # Rounds 1, 3 and 5 are evaluated for both seeds.
  np.testing.assert_array_equal(moon.get_xydata(), [[1, 2], [3, 3], [5, 6]])
  assert published.get_ydata() == [3, 3]
  # One seed: all its rounds but the one that is not evaluated, and no band.
  np.testing.assert_array_equal(
      fedavg.get_xydata(), [[1, 2], [3, 3], [4, 9], [5, 5]])
  band = axes.collections[0].get_paths()[0].vertices
  ends = [band[band[:, 0] == x, 1] for x in (1, 3, 5)]
  assert [(end.min(), end.max()) for end in ends] == [(1, 3), (2, 4), (4, 8)]
  assert len(axes.collections) == 2  # of two seeds each
  assert legend(figure) == ['MOON', 'FedAvg', 'None', 'published']
  assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title('left')) == (
      'round', 'accuracy (%)', 'digits')


def test_methods_have_constant_colours():
  line = lambda label, method: Line(label, method, np.ones([1, 1]))
  styles = figures.line_styles({
      'a': [line('k 1', 'moon'), line('k 2', 'moon'), line('FedAvg', 'fedavg')],
      'b': [line('k 2', 'moon'), line('me', 'mine'), line('you', 'yours')]})
  colors = [style['color'] for style in styles.values()]
  assert colors == [
      *[figures.COLORS['moon']] * 2, figures.COLORS['fedavg'],
      *[figures.OTHER_COLOR] * 2]
  looks = {(style['linestyle'], style['marker']) for style in styles.values()}
  assert len(looks) == 5
  styles = figures.line_styles({'': [
      line('', method) for method in (*figures.COLORS, 'other')]})
  assert len({style['marker'] for style in styles.values()}) == len(styles)
  assert all(page_checks.contrast(style['color'], '#ffffff') >= 3
             for style in styles.values())


def test_panels_share_a_legend_and_rounds_are_integers(drawn):
  panels = {f'{n} rounds': [Line('MOON', 'moon', np.full((1, n), .5))]
            for n in (1, 2, 6, 100)}
  figure = figures.curves(panels, 'accuracy', 'c')
  assert legend(figure) == ['MOON']
  assert [axes.get_title('left') for axes in figure.axes] == [*panels]
  assert all(tick == round(tick)
             for axes in figure.axes for tick in axes.get_xticks())


def test_effects(drawn):
  axes, = figures.effects({
      'first': (1, 0, 2), 'x': (-1, -3, 1),
      'a label that is much too long for a single line of it': (2, 1, 3)},
                          'difference (%)', 'e').axes
  zero, points = axes.lines
  assert zero.get_xdata() == [0, 0]
  assert points.get_xdata().tolist() == [1, -1, 2]
  intervals = np.array(axes.collections[0].get_segments())
  assert intervals[..., 0].tolist() == [[0, 2], [-3, 1], [1, 3]]
  np.testing.assert_array_equal(intervals[:, 0, 1], points.get_ydata())
  assert axes.yaxis_inverted()  # from top to bottom
  assert [text.get_text() for text in axes.get_yticklabels()] == [
      'first', 'x', 'a label that is much too\nlong for a single line\nof it']


def test_points_have_the_colour_of_their_class(drawn):
  labels = [str(k % 10) for k in range(20)]
  points = np.stack([np.arange(20.), np.arange(20.) ** 2], 1)
  figure = figures.scatter([('MOON', points, labels),
                            ('FedAvg', points[:5], labels[:5])], 's')
  first, second = figure.axes
  assert legend(figure) == [*map(str, range(10))]
  for k, (line, other) in enumerate(zip(first.lines, second.lines)):
    np.testing.assert_array_equal(line.get_xydata(), points[k::10])
    np.testing.assert_array_equal(other.get_xydata(), points[:5][k::10])
    assert line.get_color() == other.get_color()
  assert len({line.get_color() for line in first.lines}) == 10
  assert len({line.get_marker() for line in first.lines}) == 10


def test_svg_is_deterministic_and_legible(monkeypatch):
  import matplotlib

  monkeypatch.setitem(sys.modules, 'matplotlib.pyplot', None)  # not imported
  lines = [Line('MOON', 'moon', np.arange(6.)[None])]
  first = curves(lines)
  with matplotlib.rc_context({'font.size': 30, 'axes.grid': False}):
    assert curves(lines) == first
  assert first.startswith('<svg') and not re.search(
      r'\d{4}-\d\d-\d\d', first)  # no date
  width = float(re.search(r'width="([\d.]+)pt"', first)[1])
  sizes = re.findall(r'font(?:-size)?: [^;"]*?(\d+)px', first)
  # CSS pixels on a phone: 358 less the frame.
  assert min(map(float, sizes)) * 348 / width > 11
