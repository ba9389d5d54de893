"""The heat map shows the number of examples per client and class."""

from matplotlib.figure import Figure
import numpy as np
from PIL import Image
import pytest

from moon_jax.training import heatmap

_draw = heatmap.draw  # before tests/conftest.py replaces it

@pytest.fixture
def draw(monkeypatch, tmp_path):
  """A function that draws counts and returns the axes and the saved pixels."""
  figures, savefig = [], Figure.savefig

  def record(figure, *args, **kwargs):
    figures.append(figure)
    savefig(figure, *args, **kwargs)

  monkeypatch.setattr(Figure, 'savefig', record)

  def draw_counts(counts):
    _draw(counts, [f'class {k}' for k in range(counts.shape[1])],
          tmp_path / 'a.png')
    return figures[-1].axes[0], Image.open(tmp_path / 'a.png').convert('L')

  return draw_counts


@pytest.mark.parametrize('num_clients, num_classes', [
    (1, 10), (4, 7), (500, 10), (3, 200)])
def test_clients_are_on_the_x_axis(num_clients, num_classes, draw):
  counts = np.random.RandomState(0).randint(0, 900, (num_clients, num_classes))
  axes, pixels = draw(counts)
  image, = axes.images
  np.testing.assert_array_equal(image.get_array(), counts.T)
  assert axes.get_xlabel() == 'client' and axes.get_ylabel() == 'class'
  names = [label.get_text() for label in axes.get_yticklabels()]
  if num_classes <= 30:  # more labels would overlap
    assert names == [f'class {k}' for k in range(num_classes)]
    assert list(axes.get_yticks()) == list(range(num_classes))
  else:
    assert 'class 0' not in names
  assert min(pixels.size) > 300 and np.asarray(pixels).std() > 10


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
  """The scale starts at 0, not at the smallest count."""
  axes, _ = draw(np.array([[50, 60], [70, 100]]))
  image, = axes.images
  assert image.get_clim() == (0, 100)
  grey = lambda count: np.mean(image.cmap(image.norm(count))[:3])
  assert grey(0) > grey(50) > grey(60) > grey(100)


def test_many_clients_are_drawn_in_groups(draw):
  """2,999 clients in columns of 2; the last column has one client."""
  counts = np.arange(2999)[:, None] * np.ones((1, 3), int)
  axes, _ = draw(counts)
  image, = axes.images
  drawn = image.get_array()
  assert drawn.shape == (3, 1500)
  np.testing.assert_array_equal(drawn[0, :2], [.5, 2.5])
  assert drawn[0, -1] == 2998
  assert axes.get_xlabel().startswith('groups of 2 clients')


def test_shapes_cover_the_cells_with_examples():
  """The picture of `fill`, read back at the centre of each cell."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg

  counts = np.array([[0, 100], [50, 0], [1, 100]])  # 3 clients, 2 classes
  figure = Figure(figsize=(4, 3))
  canvas = FigureCanvasAgg(figure)
  heatmap.fill(figure, counts, ['a', 'b'])
  canvas.draw()
  pixels = np.asarray(canvas.buffer_rgba())[..., :3].astype(int).sum(2)
  axes = figure.axes[0]
  centre = lambda client, k: axes.transData.transform((client, k))
  shade = {}
  for (client, k), count in np.ndenumerate(counts):
    x, y = centre(client, k)
    shade.setdefault(count, set()).add(pixels[-int(y) - 1, int(x)])
  assert all(len(values) == 1 for values in shade.values())
  white, pale, middle, dark = (shade[n].pop() for n in (0, 1, 50, 100))
  assert 3 * 255 == white > pale > middle > dark
  assert not axes.images


@pytest.mark.parametrize('shape, label', [
    ((100, 10), 'group of 2 (client)'), ((60, 10), 'client')])
def test_many_clients_are_grouped_shapes(shape, label):
  figure = Figure()
  heatmap.fill(figure, np.ones(shape, int), [str(k) for k in range(10)])
  axes = figure.axes[0]
  assert axes.get_xlabel() == label and axes.get_ylabel() == 'class'
