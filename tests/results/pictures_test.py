"""The heat map of a partition, and who trains when."""

import io
import re

from matplotlib.figure import Figure
import numpy as np
import pytest

from moon_jax.data import clock
from moon_jax.results import figures, pictures, read, show
from moon_jax.runs import directory
from support import made_runs


def draw(counts, names=None):
  """Returns the axes of a heat map."""
  picture = pictures.partition_picture(
      counts, [f'class {k}' for k in range(counts.shape[1])], names)
  return drawn(picture)[0]


def drawn(picture):
  figure = figures.empty(*picture.size)
  picture.draw(figure)
  return figure.axes


def labels_of(axis):
  return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize('num_clients, num_classes', [(4, 7), (3, 50)])
def test_clients_are_on_the_x_axis(num_clients, num_classes):
  counts = np.zeros((num_clients, num_classes), int)
  counts[1] = 9
  axes = draw(counts)
  cells_KC = axes.collections[0].get_array()
  np.testing.assert_array_equal(cells_KC.filled(0), counts.T)
  assert axes.get_xlabel() == 'client' and axes.get_ylabel() == 'class'
  names = [f'class {k}' for k in range(num_classes)]
  # More labels would overlap.
  assert (labels_of(axes.yaxis) == names) == (num_classes <= 30)


def test_numbers_are_in_their_cells_and_legible():
  counts = np.array([[0, 1, 2], [30, 4, 5]])
  axes = draw(counts, ['zoe', 'x' * 99])
  numbers = {text.get_position(): (text.get_text(), text.get_color())
             for text in axes.texts}
  assert numbers == {
      (client, k): (str(counts[client, k]),
                    'white' if counts[client, k] > 15 else 'black')
      for client in range(2) for k in range(3)}
  assert labels_of(axes.xaxis) == ['zoe', 'x' * 24 + '…']
  assert not draw(np.ones((21, 3), int)).texts  # there is no room for them


def test_cells_with_more_examples_are_darker():
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
  pictures.heat_map(figure, np.ones(shape, int), [str(k) for k in range(10)])
  axes = figure.axes[0]
  assert axes.get_xlabel() == label and axes.get_ylabel() == 'class'
  means, size = pictures._grouped(np.arange(5)[:, None], 3)
  assert size == 2 and means.ravel().tolist() == [.5, 2.5, 4.]


@pytest.mark.parametrize('num_clients, num_classes', [
    (30, 3), (9, 40), (300, 3)])
def test_clients_have_names_that_do_not_overlap(
    num_clients, num_classes):
  names = [f'writer {i}' for i in range(num_clients)]
  axes = draw(np.ones((num_clients, num_classes), int), names)
  assert labels_of(axes.xaxis) == names
  axes.figure.draw_without_rendering()
  boxes = [label.get_window_extent() for label in axis_labels(axes)]
  if num_clients > 20:  # upright
    assert all(left.x1 <= right.x0 for left, right in zip(boxes, boxes[1:]))


@pytest.mark.parametrize('ending', ['svg', 'pdf'])
def test_vector_files_have_the_names_of_all_clients(ending, tmp_path):
  """As texts of 7 points or more."""
  names = [f'writer {i:03}' for i in range(200)]
  picture = pictures.partition_picture(
      np.ones((200, 3), int), ['a', 'b', 'c'], names)
  content = figures.save(picture, tmp_path, ending).read_bytes()
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


def shown(timeline, names=None):
  """Returns the axes of a picture of simulated time."""
  with np.load(io.BytesIO(directory.timeline_npz(timeline))) as arrays:
    return drawn(pictures.timeline_picture(dict(arrays), names))


def test_bars_last_from_start_to_arrival():
  """Client 7 trains from 0 to 4, over two steps; client 3 twice."""
  timeline = clock.Timeline(
      [[3], [3], [7]], [1., 2., 4.], [[0], [0], [2]],
      spans=[[(0., 1.)], [(1., 2.)], [(0., 4.)]])
  above, below = shown(timeline)
  assert [(bar.get_y() + .35, bar.get_x(), bar.get_width())
          for bar in above.patches] == [(0, 0, 1), (0, 1, 1), (1, 0, 4)]
  assert [label.get_text() for label in above.get_yticklabels()] == ['3', '7']
  fresh, _, stale = (sum(bar.get_facecolor()[:3]) for bar in above.patches)
  assert stale < fresh  # darker
  assert [bar.get_height() for bar in below.patches] == [2, 0, 1]


def test_clients_have_their_names():
  timeline = clock.Timeline([[2], [0]], [1., 2.], spans=[
      [(0., 1.)], [(1., 2.)]])
  axes, = shown(timeline, ('zoe', 'bob', 'ann'))
  assert [label.get_text() for label in axes.get_yticklabels()] == [
      'zoe', 'ann']


def test_the_beginning_of_a_large_timeline_is_drawn():
  made = clock.lognormal(1000, 0)
  timeline = clock.synchronous(
      made, made.seconds(np.full(1000, 100), 1e6, 1e6), 100, 50, seed=0)
  axes, = shown(timeline)
  assert axes.get_title() == '40 clients in the first 1 of 50 rounds'
  assert len(axes.patches) == 40


def test_show_writes_the_pictures_of_a_run(tmp_path, run_command):
  """In each format, and on its page; names that are cut have a mark."""
  path = made_runs.write(tmp_path / 'run')
  names = np.array(['ann', 'x' * 30, 'x' * 31])
  np.savez(path / 'partition.npz', sizes=[1, 2, 3], names=names,
           counts=np.arange(6).reshape(3, 2), class_names=['cat', 'dog'])
  (path / 'timeline.npz').write_bytes(directory.timeline_npz(clock.Timeline(
      [[0], [2]], [1., 2.], spans=[[(0., 1.)], [(1., 2.)]])))
  status, _, err = run_command(show.main, path, f'--out={tmp_path}/out',
                               '--format=svg,pdf', '--size=9x7')
  assert status == 0, err
  for name, texts in ('partition', {'cat', 'dog', 'ann', f'{"x" * 24}… (1)'}), (
      'timeline', {'ann', f'{"x" * 24}…'}):
    for file in f'{name}.svg', f'index/{name}.svg':
      svg = (tmp_path / 'out' / file).read_text()
      assert texts <= {*re.findall('>([^<>]+)</text>', svg)}
    assert (tmp_path / 'out' / f'{name}.pdf').stat().st_size > 1000
  page = (tmp_path / 'out' / 'index.md').read_text()
  assert '## Partition' in page and '## Timeline' in page


def test_runs_without_data_of_pictures_have_none(tmp_path):
  assert not pictures.run_pictures(read.read(made_runs.write(tmp_path / 'run')))


def test_the_models_of_clients_are_a_picture_over_rounds(tmp_path):
  run = read.read(made_runs.write(
      tmp_path / 'run', topology='ifca(clusters=2)',
      more={'clients_of_models': [[2], [0]]}))
  picture, = pictures.run_pictures(run)
  image, = drawn(picture)[0].images
  model_CT = image.get_array()
  assert model_CT.shape == (3, 4) and picture.name == 'models'
  assert model_CT[[0, 2]].tolist() == [[1] * 4, [0] * 4]
  assert model_CT.mask.tolist() == [[False] * 4, [True] * 4, [False] * 4]


def test_a_graph_has_the_accuracies_of_its_nodes(tmp_path):
  write = lambda name, graph: read.read(made_runs.write(
      tmp_path / name, num_clients=5, topology=f'gossip(graph={graph})', more={
          'clients': {'client': [3, 1], 'personal_heldout_accuracy': [.5, 1]}}))
  picture, = pictures.run_pictures(write('ring', 'ring'))
  axes, colours = drawn(picture)
  lines, others, nodes = axes.collections
  assert nodes.get_array().tolist() == [100, 50]  # clients 1 and 3
  assert len(others.get_offsets()) == 3
  ends = np.concatenate(lines.get_segments())
  assert len(ends) == 10 and np.allclose(np.hypot(*ends.T), 1)
  assert colours.get_ylabel() == 'personal held-out accuracy (%)'
  for graph in 'mine:graph', 'file(path=mine)':  # need not exist any more
    config = tmp_path / 'ring' / 'config.json'
    config.write_text(re.sub(
        r'"gossip[^"]*', f'"gossip(graph={graph})', config.read_text()))
    run = read.read(tmp_path / 'ring')
    assert 'mine' in str(run.config.topology)
    assert not pictures.run_pictures(run)
