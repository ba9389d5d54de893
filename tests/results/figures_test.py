"""Figures show the numbers, in constant colours."""

import itertools
import re
import sys

from matplotlib.figure import Figure
from matplotlib.text import Text
import numpy as np
import pandas as pd
import pytest

from moon_jax.config.kinds import METHODS
from moon_jax.errors import UserError
from moon_jax.results import figures, read
from moon_jax.results.figures import Line
from support import made_runs, page_checks

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


def save_curves(lines, ylabel, path, xlabel='round', size=None):
  figures.save(figures.curves_picture(path.stem, lines, ylabel, xlabel),
               path.parent, path.suffix[1:], size)


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
    save_curves(times, 'accuracy (%)', path, 'seconds')
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


def test_six_lines_differ_in_their_dashes_too(drawn):
  axes, = curves([line(f'{i}', method, [[0., i]]) for i, method in enumerate(
      ('fedavg', 'fedprox', 'moon', 'moon', 'moon', 'fedrep'))]).axes
  assert len({str(one._dash_pattern) for one in axes.lines}) == 6


@pytest.fixture
def saved(monkeypatch):
  """The figures that are written to files."""
  kept = []
  monkeypatch.setattr(Figure, 'savefig', lambda figure, *args, **kwargs:
                      kept.append(figure))
  return kept


def sizes_of_texts(figure):
  figure.draw_without_rendering()  # makes the labels of ticks
  return {text.get_fontsize() for text in figure.findobj(Text)
          if text.get_text()}


@pytest.mark.parametrize('size, points', [((3.3, 2.4), 8), ((7., 4.), 10)])
def test_files_have_the_size_and_one_measure_of_texts(
    size, points, saved, tmp_path):
  lines = [line(label, 'moon', np.arange(8.).reshape(2, 4) + i)
           for i, label in enumerate(('MOON, mu 1', 'MOON, mu 5',
                                      'FedProx, mu 0.01', 'FedRep'))]
  save_curves(lines, 'test accuracy (%)', tmp_path / 'x.pdf', size=size)
  figure, = saved
  assert tuple(figure.get_size_inches()) == size
  assert sizes_of_texts(figure) == {points}
  axes, = figure.axes
  boxes = sorted((Text.get_window_extent(text) for text in axes.texts),
                 key=lambda box: box.y0)
  assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:]))
  assert max(box.x1 for box in boxes) <= figure.bbox.x1 + 1


def test_a_dollar_is_no_formula(tmp_path):
  save_curves([line('a $ and $^$', 'moon', [[0., 1, 2]])], 'accuracy ($c_$)',
              tmp_path / 'x.svg')
  assert 'a $ and $^$' in (tmp_path / 'x.svg').read_text()


@pytest.mark.parametrize('settings, name', [
    ({'algorithm': 'fedavg'}, 'global model, test data'),
    ({'algorithm': 'solo'}, "mean over clients' models, test data"),
    ({'algorithm': 'fedavg', 'topology': 'gossip'},
     'mean over models, test data')])
def test_a_run_without_a_global_model_names_none(settings, name, tmp_path):
  run = read.read(made_runs.write(tmp_path / 'a', [.5, .75], **settings))
  assert figures._names_of(run)('test_accuracy') == name
  assert ('gossip' in figures._title_of(run)) == ('topology' in settings)


@pytest.mark.parametrize('xlabel, ticks', [
    ('bytes (means and ranges of 2 runs)', {'100 MB', '200 MB'}),
    ('simulated seconds', {'100 M', '200 M'})])
def test_large_numbers_have_no_factor_beside_the_axis(
    xlabel, ticks, saved, tmp_path):
  curve = line('MOON', 'moon', [[0., 1, 2]])
  curve.curves.index *= 80_000_000
  save_curves([curve], 'accuracy (%)', tmp_path / 'x.png', xlabel,
                      (3.3, 2.4))
  axes, = saved[0].axes
  saved[0].draw_without_rendering()
  assert not axes.xaxis.get_offset_text().get_text()
  labels = axes.get_xticklabels()
  assert ticks <= {text.get_text() for text in labels}
  boxes = [text.get_window_extent() for text in labels]
  assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:]))


@pytest.mark.parametrize('size, count', [((3.3, 1.), 3), ((1., 3.), 3),
                                         ((3.3, 2.4), 30)])
def test_a_size_without_room_is_an_error(size, count, saved, tmp_path):
  lines = [line(f'number {i}', 'moon', [[0., i]]) for i in range(count)]
  with pytest.raises(UserError, match='size must have room .*8 points; got'):
    save_curves(lines, 'accuracy (%)', tmp_path / 'x.pdf', size=size)
  assert not saved


@pytest.mark.parametrize('size', [(10, 7.5), (3.3, 9)])
def test_panels_of_a_run_have_plain_words_and_names(size, saved, tmp_path):
  path = made_runs.write(tmp_path / 'run', algorithm='fedprox(mu=0.1)', more={
      'global_own_accuracy': .9, 'local_heldout_accuracy': .5,
      'new_adapted_heldout_accuracy': .3, 'clients': {
          'client': [2, 0, 1], 'name': ['ann', 'zoe', 'bob'],
          'global_own_accuracy': [.9, .3, .6],
          'local_heldout_accuracy': [.1, None, .2]}})
  figures.save(figures.run_picture(read.read(path)), tmp_path, 'png', size)
  figure, = saved
  assert figure.get_suptitle() == 'FedProx, mu 0.1, digits, seed 0'
  shown = legend(figure)
  assert len(figure.legends) == 1 and {
      'global model, test data', "global model, clients' own examples",
      'local models, held-out examples', 'train loss',
      'new clients after training, held-out examples'} < {*shown}
  assert not [text for text in shown if '_' in text]
  clients = figure.axes[-1]
  assert not any(axes.get_legend() for axes in figure.axes)
  assert sizes_of_texts(figure) == {10 if size[0] == 10 else 8}
  assert [label.get_text() for label in clients.get_xticklabels()] == [
      'ann', 'bob', 'zoe']  # the lowest of clients' models first
  own, heldout = clients.lines
  assert own.get_ydata().tolist() == [.9, .6, .3]
  assert heldout.get_ydata()[:2].tolist() == [.1, .2]
  colors = {line.get_label(): line.get_color()
            for line in figure.axes[0].lines}
  assert own.get_color() == colors[own.get_label()]


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
