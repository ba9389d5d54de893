"""Arrays that CPU devices read in place."""

import numpy as np
import pytest

from moon_jax.data import sources
from moon_jax.data.aligned import aligned, is_aligned


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


def test_a_read_only_view_is_copied_because_its_base_may_change(tmp_path):
  x = shifted(0)
  view = x.view()
  view.flags.writeable = False
  copy = aligned(view)
  x[0, 0] = 7
  assert view[0, 0] == 7 and copy[0, 0] == 0
  np.save(tmp_path / 'x.npy', x)
  mapped = np.load(tmp_path / 'x.npy', mmap_mode='r')
  assert not np.shares_memory(aligned(mapped), mapped)


def test_training_examples_are_loaded_aligned():
  dataset = sources.load('digits', '')
  assert is_aligned(dataset.train_inputs) and is_aligned(dataset.train_labels)
