"""The heat map shows how much of each class each client has."""

from matplotlib.figure import Figure
import numpy as np
from PIL import Image
import pytest

from moon_jax.report import heatmap


@pytest.fixture
def drawn(monkeypatch, tmp_path):
  """Draws; returns the axes of the figure that was saved, and its pixels."""
  figures, savefig = [], Figure.savefig

  def remember(figure, *args, **kwargs):
    figures.append(figure)
    savefig(figure, *args, **kwargs)

  monkeypatch.setattr(Figure, 'savefig', remember)

  def draw(counts):
    heatmap.draw(counts, [f'class {k}' for k in range(counts.shape[1])],
                 tmp_path / 'a.png')
    return figures[-1].axes[0], Image.open(tmp_path / 'a.png').convert('L')

  return draw


@pytest.mark.parametrize('num_clients, num_classes', [
    (1, 10), (4, 7), (500, 10), (3, 200)])
def test_clients_are_across_and_classes_down(num_clients, num_classes, drawn):
  counts = np.random.RandomState(0).randint(0, 900, (num_clients, num_classes))
  axes, picture = drawn(counts)
  image, = axes.images
  np.testing.assert_array_equal(image.get_array(), counts.T)
  assert axes.get_xlabel() == 'client' and axes.get_ylabel() == 'class'
  names = [label.get_text() for label in axes.get_yticklabels()]
  if num_classes <= 30:  # those of many would lie over one another
    assert names == [f'class {k}' for k in range(num_classes)]
    assert list(axes.get_yticks()) == list(range(num_classes))
  else:
    assert 'class 0' not in names
  assert min(picture.size) > 300 and np.asarray(picture).std() > 10


def test_numbers_stand_where_they_belong_and_can_be_read(drawn):
  counts = np.array([[0, 1, 2], [30, 4, 5]])
  axes, _ = drawn(counts)
  found = {text.get_position(): (text.get_text(), text.get_color())
           for text in axes.texts}
  assert found == {
      (client, k): (str(counts[client, k]),
                    'white' if counts[client, k] > 15 else 'black')
      for client in range(2) for k in range(3)}
  axes, _ = drawn(np.ones((21, 3), int))
  assert not axes.texts  # too many to read


def test_darker_is_more(drawn):
  """From none at all, whatever the fewest are."""
  axes, _ = drawn(np.array([[50, 60], [70, 100]]))
  image, = axes.images
  assert image.get_clim() == (0, 100)
  grey = lambda count: np.mean(image.cmap(image.norm(count))[:3])
  assert grey(0) > grey(50) > grey(60) > grey(100)
