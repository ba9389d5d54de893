"""Only pickles of plain arrays are read, and no code runs."""

import datetime
import os
import pickle
import pickletools
import re

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.data.io import plain_pickle

BATCH = {b'data': np.arange(6, dtype=np.uint8).reshape(2, 3),
         b'labels': [3, 4], b'batch_label': b'training batch 1 of 5'}


@pytest.mark.parametrize('protocol', [2, 3, 4])
@pytest.mark.parametrize('array', [
    BATCH[b'data'], np.asfortranarray(BATCH[b'data']),
    np.array([1.5, -2]), np.array([1, 2], '>i4')])
def test_plain_arrays(protocol, array):
  actual = plain_pickle.loads_dict(
      pickle.dumps({**BATCH, b'data': array}, protocol))
  np.testing.assert_array_equal(actual[b'data'], array)
  assert actual[b'data'].dtype == array.dtype
  assert actual[b'labels'] == [3, 4]


def test_python_2_pickle():
  """The published files use protocol 2, byte strings and numpy.core."""
  blob = (b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\n"
          b"q\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01K\x03"
          b"\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ"
          b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x03abctbU\x06labelsq"
          b"\x08]q\x09K\x06au.")
  pickletools.dis(blob, out=open(os.devnull, 'w'))
  actual = plain_pickle.loads_dict(blob)
  np.testing.assert_array_equal(actual[b'data'], [[97, 98, 99]])
  assert actual[b'labels'] == [6]


class Hostile:
  """An object that unpickles by calling `function` with `arguments`."""

  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
@pytest.mark.parametrize('value, words', [
    (Hostile(os.system, 'touch pwned'), 'posix.system is not allowed'),
    (Hostile(eval, "open('pwned', 'w')"), r'\w+.eval is not allowed'),
    (Hostile(np.load, 'pwned', None, True), r'numpy\S*load is not allowed'),
    ({b'data': Hostile(exec, "open('pwned', 'w')")}, r'\w+.exec is not'),
    ({b'data': datetime.date(2020, 1, 1)}, 'datetime.date is not allowed'),
    ({b'data': np.array([{}], object)}, 'arrays of object are not allowed'),
    ([1, 2], 'got a list'),
])
def test_other_values_are_refused(
    value, words, protocol, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=f'not a pickle.*{words}'):
    plain_pickle.loads_dict(pickle.dumps(value, protocol))
  assert not os.listdir(tmp_path)


def pickled_call(module, name, argument, protocol):
  """Pickles {b'data': module.name(argument)} without importing `module`."""
  text = lambda word: b'\x8c' + bytes([len(word)]) + word.encode()
  function = (text(module) + text(name) + b'\x93' if protocol > 3
              else f'c{module}\n{name}\n'.encode())
  data = b'U\x04data' if protocol < 3 else b'C\x04data'
  argument = b'X' + len(argument).to_bytes(4, 'little') + argument.encode()
  blob = (b'\x80' + bytes([protocol]) + b'}' + data + function + argument
          + b'\x85Rs.')
  pickletools.dis(blob, out=open(os.devnull, 'w'))
  return blob


@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
@pytest.mark.parametrize('module, name, argument', [
    ('builtins', 'eval', "open('pwned', 'w')"),
    ('builtins', 'exec', "open('pwned', 'w')"),
    ('__builtin__', 'eval', "open('pwned', 'w')"),
    ('builtins', 'getattr', 'x'), ('builtins', '__import__', 'antigravity'),
    ('builtins', 'bytearray', 'x'), ('os', 'mkdir', 'pwned'),
    ('numpy', 'load', 'pwned'), ('numpy', 'fromfile', 'pwned'),
    ('numpy', 'ones', 'i4'), ('numpy.lib', 'npyio.load', 'pwned'),
    ('numpy', 'ndarray.tofile', 'pwned'), ('numpy', 'dtype.type', 'i4'),
    ('numpy.core.multiarray', 'scalar', 'i4'),
    ('numpy._core.multiarray', 'array', 'i4'), ('_codecs', 'decode', 'x'),
    ('moon_jax.data.io.plain_pickle', 'loads_dict', 'x'),
])
def test_other_names_are_never_called(
    module, name, argument, protocol, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  calls = []
  for function in ('load', 'fromfile', 'ones'):
    monkeypatch.setattr(np, function, lambda *args: calls.append(args))
  with pytest.raises(ValueError, match=re.escape(f'{module}.{name} is')):
    plain_pickle.loads_dict(pickled_call(module, name, argument, protocol))
  assert not os.listdir(tmp_path) and not calls


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_raise_only_value_errors(data):
  blob = bytearray(pickle.dumps(BATCH, 2))
  for _ in range(data.draw(st.integers(1, 3))):
    blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(
        st.integers(0, 255))
  try:
    plain_pickle.loads_dict(bytes(blob[:data.draw(st.integers(0, len(blob)))]))
  except ValueError:
    pass
