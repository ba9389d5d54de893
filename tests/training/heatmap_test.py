"""The heat map shows the number of examples per client and class."""

from matplotlib.figure import Figure
import numpy as np
from PIL import Image
import pytest

from moon_jax.training import heatmap

_draw = heatmap.draw  # before tests/conftest.py replaces it


@pytest.fixture
def draw(monkeypatch, tmp_path):
  """A function that draws counts and returns the axes and the saved pixels.

  The second function of a pair gives the grey at the centre of a cell, 0 to
  255.
  """
  figures, savefig = [], Figure.savefig

  def record(figure, *args, **kwargs):
    figures.append(figure)
    savefig(figure, *args, **kwargs)

  monkeypatch.setattr(Figure, 'savefig', record)

  def draw_counts(counts):
    _draw(counts, [f'class {k}' for k in range(counts.shape[1])],
          tmp_path / 'a.png')
    pixels = np.asarray(Image.open(tmp_path / 'a.png').convert('L'))
    axes = figures[-1].axes[0]

    def grey(client, k, aside=.4):  # numbers are in the middle of a cell
      x, y = axes.transData.transform((client + aside, k + aside))
      x, y = (int(v * 120 / figures[-1].dpi) for v in (x, y))
      return int(pixels[-y - 1, x])

    return axes, grey

  return draw_counts


def names_of(axes):
  return [label.get_text() for label in axes.get_yticklabels()]


@pytest.mark.parametrize('num_clients, num_classes', [(4, 7), (3, 50)])
def test_clients_are_on_the_x_axis(num_clients, num_classes, draw):
  counts = np.zeros((num_clients, num_classes), int)
  counts[1] = 9
  axes, grey = draw(counts)
  assert [grey(client, 2) == 255 for client in range(3)] == [True, False, True]
  assert axes.get_xlabel() == 'client' and axes.get_ylabel() == 'class'
  names = [f'class {k}' for k in range(num_classes)]
  assert (names_of(axes) == names) == (num_classes <= 30)  # or overlapping


def test_numbers_are_in_their_cells_and_legible(draw):
  counts = np.array([[0, 1, 2], [30, 4, 5]])
  axes, _ = draw(counts)
  numbers = {text.get_position(): (text.get_text(), text.get_color())
             for text in axes.texts}
  assert numbers == {
      (client, k): (str(counts[client, k]),
                    'white' if counts[client, k] > 15 else 'black')
      for client in range(2) for k in range(3)}
  axes, _ = draw(np.ones((21, 3), int))
  assert not axes.texts  # there is no room for them


def test_cells_with_more_examples_are_darker(draw):
  """In shapes, of which SVG files have no embedded images."""
  axes, grey = draw(np.array([[0, 100], [50, 0], [1, 100]]))
  assert grey(0, 0) == grey(1, 1) == 255 and grey(0, 1) == grey(2, 1)
  assert 255 > grey(2, 0) > grey(1, 0) > grey(0, 1)
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


def test_columns_have_the_names_of_clients(monkeypatch, tmp_path):
  labels = []
  monkeypatch.setattr(Figure, 'savefig', lambda figure, *_, **__: labels.extend(
      label.get_text() for label in figure.axes[0].get_xticklabels()))
  _draw(np.ones((2, 3)), 'abc', tmp_path / 'a.png', ['zoe', 'x' * 99])
  assert labels == ['zoe', 'x' * 24]
