"""A tiny MNIST in published form, for tests of downloads and checks."""

import functools
import gzip
import hashlib
import struct

import numpy as np

from moon_jax import data_command
from moon_jax.data import sources
from moon_jax.data.io import published
from moon_jax.data.sources import images

COUNTS = (20, 10)


def idx(array):
  """Returns an IDX file of uint8."""
  return (bytes([0, 0, 8, array.ndim])
          + struct.pack(f'>{array.ndim}I', *array.shape) + array.tobytes())


def files():
  """Returns the four files, name -> bytes; two images per class and part."""
  random = np.random.RandomState(0)
  return {name: idx(
      random.randint(0, 256, (count, 28, 28), np.uint8) if 'images' in name
      else np.arange(count, dtype=np.uint8) % 10)
      for name, count in zip(images.MNIST.files,
                             np.repeat(COUNTS, 2).tolist())}


def md5(blob):
  return hashlib.md5(blob).hexdigest()


def compressed():
  return {f'{name}.gz': gzip.compress(blob, mtime=0)
          for name, blob in files().items()}


def with_files(data_set, blobs, counts):
  """Returns a data set of which these are the published files."""
  return data_set._replace(num_images=counts, files={
      name: (md5(blob), len(blob)) for name, blob in blobs.items()})


def use(monkeypatch):
  """Gives MNIST the sizes and checksums of these files."""
  blobs = files()
  mnist = with_files(images.MNIST, blobs, COUNTS)
  monkeypatch.setitem(
      sources.PUBLISHED, 'fashion_mnist', images.FASHION_MNIST._replace(
          other_dataset=(md5([*blobs.values()][-1]), 'mnist')))
  monkeypatch.setitem(sources.PUBLISHED, 'mnist', mnist)
  monkeypatch.setitem(
      sources.SOURCES, 'mnist', functools.partial(published.load, mnist))
  entry = data_command.ENTRIES['mnist']
  monkeypatch.setitem(
      data_command.ENTRIES, 'mnist', entry._replace(downloads=tuple(
          file._replace(md5=md5(blob)) for file, blob in zip(
              entry.downloads, compressed().values()))))


def write(directory, blobs):
  directory.mkdir(parents=True, exist_ok=True)
  for name, blob in blobs.items():
    (directory / name).write_bytes(blob)
