"""The heat map shows the number of examples per client and class."""

import re

from matplotlib.figure import Figure
import numpy as np
from PIL import Image
import pytest

from moon_jax.results import heatmap


@pytest.fixture
def draw(monkeypatch, tmp_path):
  """A function that draws counts to a file and returns the axes."""
  figures, savefig = [], Figure.savefig

  def record(figure, *args, **kwargs):
    figures.append(figure)
    savefig(figure, *args, **kwargs)

  def draw_counts(counts, names=None):
    path = tmp_path / 'a.png'
    heatmap.draw(
        counts, [f'class {k}' for k in range(counts.shape[1])], path, names)
    assert min(Image.open(path).size) > 100
    return figures[-1].axes[0]

  monkeypatch.setattr(Figure, 'savefig', record)
  return draw_counts


def labels_of(axis):
  return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize('num_clients, num_classes', [(4, 7), (3, 50)])
def test_clients_are_on_the_x_axis(num_clients, num_classes, draw):
  counts = np.zeros((num_clients, num_classes), int)
  counts[1] = 9
  axes = draw(counts)
  cells_KC = axes.collections[0].get_array()
  np.testing.assert_array_equal(cells_KC.filled(0), counts.T)
  assert axes.get_xlabel() == 'client' and axes.get_ylabel() == 'class'
  names = [f'class {k}' for k in range(num_classes)]
  # More labels would overlap.
  assert (labels_of(axes.yaxis) == names) == (num_classes <= 30)


def test_numbers_are_in_their_cells_and_legible(draw):
  counts = np.array([[0, 1, 2], [30, 4, 5]])
  axes = draw(counts, ['zoe', 'x' * 99])
  numbers = {text.get_position(): (text.get_text(), text.get_color())
             for text in axes.texts}
  assert numbers == {
      (client, k): (str(counts[client, k]),
                    'white' if counts[client, k] > 15 else 'black')
      for client in range(2) for k in range(3)}
  assert labels_of(axes.xaxis) == ['zoe', 'x' * 24]
  assert not draw(np.ones((21, 3), int)).texts  # there is no room for them


def test_cells_with_more_examples_are_darker(draw):
  """In shapes, of which SVG files have no embedded images."""
  axes = draw(np.array([[0, 100], [50, 0], [1, 100]]))
  mesh = axes.collections[0]
  light, middle, dark = mesh.to_rgba([1, 50, 100]).sum(1)
  assert light > middle > dark
  assert mesh.get_array().mask.T.tolist() == [
      [True, False], [False, True], [False, False]]
  assert not axes.images


@pytest.mark.parametrize('shape, label', [
    ((100, 10), 'group of 2 (client)'), ((60, 10), 'client')])
def test_many_clients_are_drawn_in_groups(shape, label):
  figure = Figure()
  heatmap.fill(figure, np.ones(shape, int), [str(k) for k in range(10)])
  axes = figure.axes[0]
  assert axes.get_xlabel() == label and axes.get_ylabel() == 'class'
  means, size = heatmap._grouped(np.arange(5)[:, None], 3)
  assert size == 2 and means.ravel().tolist() == [.5, 2.5, 4.]


@pytest.mark.parametrize('num_clients, num_classes', [(30, 3), (9, 40)])
def test_clients_have_names_that_do_not_overlap(
    num_clients, num_classes, draw):
  names = [f'writer {i}' for i in range(num_clients)]
  axes = draw(np.ones((num_clients, num_classes), int), names)
  assert labels_of(axes.xaxis) == names
  axes.figure.draw_without_rendering()
  boxes = [label.get_window_extent() for label in axis_labels(axes)]
  if num_clients > 20:  # upright
    assert all(left.x1 <= right.x0 for left, right in zip(boxes, boxes[1:]))


@pytest.mark.parametrize('ending', ['svg', 'pdf'])
def test_vector_files_have_the_names_of_100_clients(ending, tmp_path):
  """As texts of 7 points or more."""
  names = [f'writer {i:03}' for i in range(100)]
  path = tmp_path / f'a.{ending}'
  heatmap.draw(np.ones((100, 3), int), ['a', 'b', 'c'], path, names)
  content = path.read_bytes()
  assert (b'<image' not in content and
          b'/Subtype /Image' not in content)
  if ending == 'svg':
    text = content.decode()
    assert re.findall(r'>(writer \d+)</text>', text) == names
    sizes = re.findall(r'font(?:-size)?: [^;"]*?([\d.]+)px', text)
    assert min(map(float, sizes)) >= 7  # in points: as wide as the figure
  else:
    assert b'/TrueType' in content or b'/CIDFontType2' in content


def axis_labels(axes):
  return axes.xaxis.get_ticklabels()
