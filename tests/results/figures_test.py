"""Figures show the numbers, in constant colours."""

import itertools
import re
import sys

from matplotlib.text import Text
import numpy as np
import pandas as pd
import pytest

from moon_jax.config.kinds import METHODS
from moon_jax.results import figures
from moon_jax.results.figures import Line
from support import page_checks

NAN = np.nan


@pytest.fixture
def drawn(monkeypatch):
  """Functions that return SVG text return the figure instead."""
  def draw(fill, height, name):
    figure = figures.empty(4, height)
    fill(figure)
    return figure

  monkeypatch.setattr(figures, 'svg', draw)


def line(label, method, curves_ST, **fields):
  rounds = range(1, len(curves_ST[0]) + 1)
  return Line(label, method, pd.DataFrame(np.transpose(curves_ST), rounds),
              **fields)


def curves(lines):
  return figures.curves(lines, 'accuracy (%)', 'c')


def legend(figure):
  return [text.get_text() for text in figure.legends[0].get_texts()]


def labels(axes):
  """Returns the labels of lines from the top, with what they point at."""
  return {text.get_text(): text.xy for text in sorted(
      axes.texts, key=lambda text: -text.get_position()[1])}


def test_curves_are_means_and_bands(drawn):
  curves_ST = np.array([[1., NAN, 2, 8, 4], [3., 9, 4, NAN, 8]])
  figure = curves([line('MOON', 'moon', curves_ST, published=3.),
                   line('FedAvg', 'fedavg', curves_ST[:1] + 1),
                   line('None', 'solo', np.full((2, 3), NAN))])
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
  assert labels(axes) == {'MOON': (5, 6), 'FedAvg': (5, 5)}
  assert (axes.get_xlabel(), axes.get_ylabel()) == ('round', 'accuracy (%)')


def test_methods_have_colours_and_their_lines_become_darker():
  methods = [*figures.COLORS, 'mine']
  assert [color.upper() for color in figures.shades(methods)] == [
      *figures.COLORS.values(), figures.OTHER_COLOR]
  built_in = [figures.color_of(method) for method in METHODS]
  assert len(set(built_in)) == len(METHODS)
  assert min(page_checks.contrast(color, '#ffffff') for color in built_in) >= 3
  first, _, *shades = figures.shades(['moon', 'fedprox', 'moon', 'moon'])
  assert first.upper() == figures.COLORS['moon']
  contrasts = [page_checks.contrast(color, '#ffffff')
               for color in (first, *shades)]
  assert contrasts == sorted(contrasts) and contrasts[0] >= 3
  assert min(np.diff(contrasts)) > .5


def test_labels_are_wrapped_and_do_not_overlap(drawn):
  figure = curves([line(f'number {i} of the lines of it', 'moon',
                        [[0., 100 + i / 10]]) for i in range(12)])
  axes, = figure.axes
  figure.draw_without_rendering()
  assert list(labels(axes))[0] == 'number 11 of the\nlines of it'
  boxes = sorted(  # without the lines to their ends
      (Text.get_window_extent(text) for text in axes.texts),
      key=lambda box: box.y0)
  assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:]))
  assert max(box.x1 for box in boxes) <= figure.bbox.x1
  assert min(box.y0 for box in boxes) >= 0 and max(
      box.y1 for box in boxes) <= figure.bbox.y1


@pytest.mark.parametrize('label', [
    'algorithm=fedprox (n=2)', 'algorithm=scaffold aggregation=trimmed_mean',
    'FedDyn, partition dirichlet, beta 0.5', 'mu=0.125 learning_rate=1e-05',
    'algorithm.mu=0.125 partition=dirichlet(beta=0.5)',
    'content of model=0123456789abcdef', 'own_package.networks:LargeNetwork'])
def test_labels_break_between_words_only(drawn, label):
  """A number stays with its name, and the text stays the same."""
  axes, = curves([line(label, 'moon', [[0., 1]])]).axes
  text, = labels(axes)
  lines = text.split('\n')
  assert re.sub(r'\s', '', text) == re.sub(r'\s', '', label)
  words = re.findall(r'[A-Za-z]+|\d[\w.-]*', label)
  assert re.findall(r'[A-Za-z]+|\d[\w.-]*', text) == words
  assert not [part for part in lines[1:] if part[0] in '=.']
  assert all(part in text for part in re.findall(r'[^\W_]+=\d\S*', label))


def test_no_leader_crosses_the_lines(tmp_path):
  """Those that end early have a marker, which is beside their label, too."""
  path, figures_made = tmp_path / 'x.png', []
  times = [line('early', 'fedavg', [[1., 2, 3]]), line('late', 'moon', [[
      2., 3, 4]]), line('second', 'scaffold', [[0., 1, 2]])]
  for one, scale in zip(times, (3., 10., 5.)):
    one.curves.index = one.curves.index * scale

  class Kept(figures.empty(1, 1).__class__):
    def __init__(self, *args, **kwargs):
      super().__init__(*args, **kwargs)
      figures_made.append(self)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('matplotlib.figure.Figure', Kept)
    figures.save_curves(times, 'accuracy (%)', path, 'seconds')
  axes, = figures_made[0].axes
  leaders = {text.get_text(): text.arrow_patch for text in axes.texts}
  assert [name for name in leaders if leaders[name]] == ['late']
  markers = {}
  for mark in axes.lines[3:]:
    markers.setdefault((mark.get_color(), mark.get_marker()), []).append(mark)
  assert [len(marks) for marks in markers.values()] == [2, 2]
  assert len({marker for _, marker in markers}) == 2
  assert axes.get_xlim()[1] < 40


@pytest.mark.parametrize('methods', [
    *(['moon', method, method, method] for method in figures.COLORS),
    [*METHODS[:12]], [*METHODS[-12:]], ['mine'] * 5, ['solo'] * 4])
def test_lines_look_different(drawn, methods):
  """Two lines whose colours thin lines hardly tell apart have other dashes."""
  axes, = curves([line(f'{i}', method, [[0., i]])
                  for i, method in enumerate(methods)]).axes
  seen = [(one.get_color(), str(one._dash_pattern)) for one in axes.lines]
  assert figures.distance('#000000', '#ffffff') == pytest.approx(1, abs=1e-6)
  for (color, dashes), (other, others) in itertools.combinations(seen, 2):
    assert dashes != others or figures.distance(color, other) >= .2
  assert min(page_checks.contrast(color, '#ffffff') for color, _ in seen) >= 3


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
  lines = [line('MOON', 'moon', np.arange(6.)[None])]
  first = curves(lines)
  with matplotlib.rc_context({'font.size': 30, 'axes.grid': False}):
    assert curves(lines) == first
  assert first.startswith('<svg') and not re.search(
      r'\d{4}-\d\d-\d\d', first)  # no date
  width = float(re.search(r'width="([\d.]+)pt"', first)[1])
  sizes = re.findall(r'font(?:-size)?: [^;"]*?(\d+)px', first)
  # CSS pixels on a phone: 358 less the frame.
  assert min(map(float, sizes)) * 348 / width > 11
