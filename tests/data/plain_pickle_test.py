"""Pickles of plain arrays are read; nothing else is, and nothing runs."""

import datetime
import os
import pickle
import pickletools

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.data import plain_pickle

BATCH = {b'data': np.arange(6, dtype=np.uint8).reshape(2, 3),
         b'labels': [3, 4], b'batch_label': b'training batch 1 of 5'}


@pytest.mark.parametrize('protocol', [2, 3, 4])
@pytest.mark.parametrize('array', [
    BATCH[b'data'], np.asfortranarray(BATCH[b'data']),
    np.array([1.5, -2]), np.array([1, 2], '>i4')])
def test_plain_arrays(protocol, array):
  found = plain_pickle.loads_dict(
      pickle.dumps({**BATCH, b'data': array}, protocol))
  np.testing.assert_array_equal(found[b'data'], array)
  assert found[b'data'].dtype == array.dtype
  assert found[b'labels'] == [3, 4]


def test_python_2_pickle():
  """As published: protocol 2, strings of bytes, numpy.core by its old name."""
  blob = (b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\n"
          b"q\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01K\x03"
          b"\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ"
          b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x03abctbU\x06labelsq"
          b"\x08]q\x09K\x06au.")
  pickletools.dis(blob, out=open(os.devnull, 'w'))
  found = plain_pickle.loads_dict(blob)
  np.testing.assert_array_equal(found[b'data'], [[97, 98, 99]])
  assert found[b'labels'] == [6]


class Hostile:
  """Pickles to a call of `function` on `arguments`."""

  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


@pytest.mark.parametrize('value', [
    Hostile(os.system, 'touch pwned'),
    Hostile(eval, "open('pwned', 'w')"),
    Hostile(np.load, 'pwned', None, True),
    {b'data': Hostile(exec, "open('pwned', 'w')")},
    {b'data': datetime.date(2020, 1, 1)},
    {b'data': np.array([{}], object)},
    [1, 2],
])
def test_anything_else_is_refused(value, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match='not a pickle'):
    plain_pickle.loads_dict(pickle.dumps(value, 2))
  assert not os.listdir(tmp_path)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_raise_value_errors_only(data):
  blob = bytearray(pickle.dumps(BATCH, 2))
  for _ in range(data.draw(st.integers(1, 3))):
    blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(
        st.integers(0, 255))
  try:
    plain_pickle.loads_dict(bytes(blob[:data.draw(st.integers(0, len(blob)))]))
  except ValueError:
    pass
