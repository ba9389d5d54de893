"""The picture shows who trains when."""

from matplotlib.figure import Figure
import numpy as np
from PIL import Image

from moon_jax.data import clock
from moon_jax.results import timeline_plot


def drawn(timeline, tmp_path, monkeypatch, names=None):
  """Returns the axes of a picture."""
  figures, savefig = [], Figure.savefig
  monkeypatch.setattr(Figure, 'savefig', lambda figure, *args, **kwargs: (
      figures.append(figure), savefig(figure, *args, **kwargs)))
  timeline_plot.draw(timeline, tmp_path / 'a.png', names)
  assert min(Image.open(tmp_path / 'a.png').size) > 100
  return figures[-1].axes


def test_bars_last_from_start_to_arrival(tmp_path, monkeypatch):
  """Client 7 trains from 0 to 4, over two steps; client 3 twice."""
  timeline = clock.Timeline(
      [[3], [3], [7]], [1., 2., 4.], [[0], [0], [2]],
      spans=[[(0., 1.)], [(1., 2.)], [(0., 4.)]])
  above, below = drawn(timeline, tmp_path, monkeypatch)
  assert [(bar.get_y() + .35, bar.get_x(), bar.get_width())
          for bar in above.patches] == [(0, 0, 1), (0, 1, 1), (1, 0, 4)]
  assert [label.get_text() for label in above.get_yticklabels()] == ['3', '7']
  fresh, _, stale = (sum(bar.get_facecolor()[:3]) for bar in above.patches)
  assert stale < fresh  # darker
  assert [bar.get_height() for bar in below.patches] == [2, 0, 1]


def test_clients_have_their_names(tmp_path, monkeypatch):
  timeline = clock.Timeline([[2], [0]], [1., 2.], spans=[
      [(0., 1.)], [(1., 2.)]])
  axes, = drawn(timeline, tmp_path, monkeypatch, ('zoe', 'bob', 'ann'))
  assert [label.get_text() for label in axes.get_yticklabels()] == [
      'zoe', 'ann']
  timeline_plot.draw(timeline, tmp_path / 'a.svg', ('zoe', 'bob', 'ann'))
  assert '>zoe</text>' in (tmp_path / 'a.svg').read_text()


def test_the_beginning_of_a_large_timeline_is_drawn(tmp_path, monkeypatch):
  made = clock.lognormal(1000, 0)
  timeline = clock.synchronous(
      made, made.seconds(np.full(1000, 100), 1e6, 1e6), 100, 50, seed=0)
  axes, = drawn(timeline, tmp_path, monkeypatch)
  assert axes.get_title() == '40 clients in the first 1 of 50 rounds'
  assert len(axes.patches) == 40
