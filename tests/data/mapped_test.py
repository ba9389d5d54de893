"""Memory-mapped arrays: parts, statistics and hashes equal those in memory.

Aligned arrays: CPU devices read them in place.
"""

import mmap
import statistics

import numpy as np
import pytest

from moon_jax.data import mapped, partition, sources
from moon_jax.data.mapped import aligned, is_aligned
from moon_jax.errors import UserError

_random = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
  monkeypatch.setattr(mapped, '_CHUNK_BYTES', 2000)


def on_disk(path, x):
  np.save(path, x)
  return np.load(path, mmap_mode='r')


def write(directory, arrays):
  directory.mkdir(exist_ok=True)
  for name, x in arrays.items():
    np.save(directory / f'{name}.npy', x)
  return str(directory)


IMAGES = {'x_train': _random.randint(0, 256, (40, 9, 8, 3)).astype(np.uint8),
          'y_train': np.arange(40) % 3,
          'x_test': _random.randint(0, 256, (6, 9, 8, 3)).astype(np.uint8),
          'y_test': np.arange(6) % 3,
          'client_train': np.arange(40) // 7,
          'class_names': np.array(['a', 'b', 'c'])}
FEATURES = IMAGES | {'x_train': _random.randn(40, 30).astype(np.float32),
                     'x_test': _random.randn(6, 30)}
TOKENS = IMAGES | {'x_train': _random.randint(0, 90, (40, 70)).astype(np.int8),
                   'x_test': _random.randint(0, 90, (6, 70))}


def test_a_map_is_found_through_views(tmp_path):
  x = on_disk(tmp_path / 'x.npy', np.arange(12.).reshape(4, 3))
  for view in x, np.asarray(x), x[1:], np.asarray(x)[..., None]:
    assert mapped.is_mapped(view)
  for copy in np.array(x), x + 1, x[[0, 2]], None, np.zeros(3):
    assert not mapped.is_mapped(copy)


@pytest.mark.parametrize('shape', [(40, 9, 8, 3), (1, 5), (700, 2)])
def test_parts_make_up_the_array(tmp_path, shape):
  values = _random.randint(10, 200, shape).astype(np.uint8)
  values.flat[0], values.flat[-1] = 255, 0  # in the first and the last part
  x = on_disk(tmp_path / 'x.npy', values)
  parts = [np.array(part) for part in mapped.chunks(x)]
  np.testing.assert_array_equal(np.concatenate(parts), values)
  assert max(part.nbytes for part in parts) <= 2000
  assert mapped.bounds(x) == (0, 255)
  ids = np.arange(0, len(x), 3)
  rows = mapped.rows(x, ids)
  np.testing.assert_array_equal(rows, values[ids])
  assert not mapped.is_mapped(rows) and (
      len([*mapped.chunks(values)]) == 1)


@pytest.mark.parametrize('count', [1, 60, 333])
@pytest.mark.parametrize('channels', [1, 2, 3, 4])
def test_statistics_are_exact_and_do_not_depend_on_parts(
    tmp_path, count, channels, monkeypatch):
  """Other bits would change the fingerprint of the data set."""
  values = _random.randint(0, 256, (count, 9, 7, channels)).astype(np.uint8)
  actual = mapped.mean_and_std(values)
  pixels = values.reshape(-1, channels).T.tolist()
  for statistic, number in zip((statistics.fmean, statistics.pstdev), actual):
    np.testing.assert_allclose(
        number, [statistic(channel) / 255 for channel in pixels], rtol=1e-15)
  monkeypatch.setattr(mapped, '_COUNTED', 7)
  np.testing.assert_array_equal(
      mapped.mean_and_std(on_disk(tmp_path / 'x.npy', values)), actual)


def test_images_in_a_file_are_not_turned(tmp_path):
  """A copy of them in memory would be as large as the file."""
  images = _random.randint(0, 256, (6, 8, 8, 3)).astype(np.uint8)
  clients = [np.arange(3), np.arange(3, 6)]
  assert partition.turned(images, clients, 2).shape == images.shape
  with pytest.raises(UserError, match='not turn images that stay in their fil'):
    partition.turned(on_disk(tmp_path / 'x.npy', images), clients, 2)


def test_private_changes_survive(tmp_path):
  np.save(tmp_path / 'x.npy', np.zeros((500, 2)))
  x = np.load(tmp_path / 'x.npy', mmap_mode='c')
  x[:] = 1
  view = x[:]
  view.flags.writeable = False
  assert mapped.bounds(view) == (1, 1) and (mapped.rows(view, [3]) == 1).all()


@pytest.mark.parametrize('arrays', [IMAGES, FEATURES, TOKENS])
def test_a_directory_equals_an_npz_file(tmp_path, arrays):
  np.savez(tmp_path / 'mine.npz', **arrays)
  whole = sources.load_dataset('npz', str(tmp_path / 'mine.npz'))
  assert is_aligned(whole.train_inputs) and is_aligned(whole.train_labels)
  data = sources.load_dataset('npy', write(tmp_path / 'mine', arrays))
  assert mapped.is_mapped(data.train_inputs)
  assert not mapped.is_mapped(data.test_inputs)
  assert data.fingerprint() == whole.fingerprint()


def test_functions_may_return_maps(tmp_path, monkeypatch):
  """Also of gray images, which need no channel axis."""
  write(tmp_path, {'x': IMAGES['x_train'][..., 0]})
  (tmp_path / 'loads_maps.py').write_text('''
import numpy as np
def load(data_dir):
  x = np.load(f'{data_dir}/x.npy', mmap_mode='r')
  return {'x_train': x[4:], 'y_train': np.arange(36) % 2,
          'x_test': x[:2], 'y_test': [0, 1]}
''')
  monkeypatch.syspath_prepend(tmp_path)
  data = sources.load_dataset('loads_maps:load', str(tmp_path))
  assert mapped.is_mapped(data.train_inputs)
  assert not mapped.is_mapped(data.test_inputs)
  np.testing.assert_array_equal(
      data.train_inputs, IMAGES['x_train'][4:, ..., :1])


def test_pages_are_released(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(mapped.mmap, 'mmap', type('Map', (mmap.mmap,), {
      'madvise': lambda self, advice: calls.append(advice)}))
  data = sources.load_dataset('npy', write(tmp_path, IMAGES))
  assert set(calls) == {mmap.MADV_DONTNEED}
  size = len(calls)
  data.fingerprint()
  parts = -(-data.train_inputs.nbytes // 2000)
  assert len(calls) - size >= parts > 3


@pytest.mark.parametrize('changes, words', [
    ({'x_train': _random.randn(40, 30), 'x_test': _random.randn(6, 30)},
     'x_train must be float32 to stay a memory map; got float64. Save it as'),
    (TOKENS | {'x_train': TOKENS['x_train'].astype(np.int64)},
     'x_train must be int8 to stay a memory map; got int64. Save it as int8'),
    ({'x_train': np.asfortranarray(IMAGES['x_train'])},
     'must be contiguous as a memory'),
    ({'x_train': np.array([{}] * 40)}, 'must hold npy files of plain arrays; '
     'got .*x_train.npy .*(ython obj|pickle)'),
])
def test_invalid_arrays_raise(tmp_path, changes, words):
  with pytest.raises(UserError, match=words) as error:
    sources.load_dataset('npy', write(tmp_path, IMAGES | changes))
  assert '\n' not in str(error.value)


def test_missing_and_damaged_files_raise(tmp_path):
  for data_dir, words in (('', 'must name a directory'),
                          (str(tmp_path / 'no'), 'no, which does not exist'),
                          (str(tmp_path),
                           'must be there; got no x_train, y_train')):
    with pytest.raises(UserError, match=words):
      sources.load_dataset('npy', data_dir)
  write(tmp_path, IMAGES)
  path = tmp_path / 'x_train.npy'
  for content in path.read_bytes()[:-100], b'\x80\x04N.', b'':
    path.write_bytes(content)
    with pytest.raises(UserError, match=(
        'npy files of plain .*x_train.npy .*again')):
      sources.load_dataset('npy', str(tmp_path))


# Aligned arrays.


def shifted(count):
  """Returns an array that starts `count` bytes after a multiple of 64."""
  buffer = np.zeros(64 + 64 + 48, np.uint8)
  start = -buffer.ctypes.data % 64 + count
  x = buffer[start:start + 48].view(np.float32).reshape(3, 4)
  x[...] = np.arange(12).reshape(3, 4)
  return x


@pytest.mark.parametrize('count', [0, 4, 16, 60])
def test_copies_are_aligned_and_read_only(count):
  x = shifted(count)
  copy = aligned(x)
  assert is_aligned(copy) and not is_aligned(x)
  assert copy.ctypes.data % 64 == 0
  assert copy.dtype == x.dtype
  np.testing.assert_array_equal(copy, x)
  x[:] = -1  # the original array remains writable
  assert copy[2, 3] == 11
  with pytest.raises(ValueError, match='read-only'):
    copy[0] = 0
  assert aligned(copy) is copy and not is_aligned(copy[:, ::2])
  assert aligned(copy[:, ::2]).tolist() == copy[:, ::2].tolist()
  view = x.view()
  view.flags.writeable = False
  assert not np.shares_memory(aligned(view), view)  # `x` may change
