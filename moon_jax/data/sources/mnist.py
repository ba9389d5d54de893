"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017).

https://yann.lecun.com/exdb/mnist, https://github.com/zalandoresearch/
fashion-mnist. Both are published as four files of the same names in the IDX
format. Checksums are those of the decompressed files, so recompressed files are
valid. They also distinguish the two data sets: if a directory holds the files
of the other data set, the next directory is tried.
"""

import math
import struct

import numpy as np

from moon_jax.data.io.published import Layout, PublishedDataset

_FILES = ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte',
          't10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')
_UINT8 = 8  # type code in IDX files


def decode(images: bytes, labels: bytes) -> tuple[np.ndarray, np.ndarray]:
  """Decodes IDX files to images, uint8 [n, H, W, 1], and labels, uint8 [n]."""
  return _decode_idx(images, 3)[..., None], _decode_idx(labels, 1)


def _decode_idx(blob: bytes, num_axes: int) -> np.ndarray:
  """Decodes an IDX file: header, axis lengths as big-endian uint32, values.

  The header is two zero bytes, the type code and the number of axes.
  """
  header = 4 + 4 * num_axes
  magic = bytes([0, 0, _UINT8, num_axes])
  if len(blob) < header or blob[:4] != magic:
    raise ValueError(f'an IDX file of {num_axes} axes must begin with '
                     f'{magic.hex()}, got {blob[:4].hex() or "nothing"}')
  shape = struct.unpack(f'>{num_axes}I', blob[4:header])
  if len(blob) != header + math.prod(shape):
    raise ValueError(f'expected {header + math.prod(shape):,} bytes for shape '
                     f'{list(shape)} in the header, got {len(blob):,} bytes')
  return np.frombuffer(blob, np.uint8, offset=header).reshape(shape)


_MD5 = {
    'mnist': ('6bbc9ace898e44ae57da46a324031adb',
              'a25bea736e30d166cdddb491f175f624',
              '2646ac647ad5339dbf082846283269ea',
              '27ae3e4e09519cfbb04c329615203637'),
    'fashion_mnist': ('f4a8712d7a061bf5bd6d2ca38dc4d50a',
                      '9018921c3c673c538a1fc5bad174d6f9',
                      '8181f5470baa50b63fa0f6fddb340f0a',
                      '15d484375f8d13e6eb1aabb0c3f46965'),
}


def _layouts(name: str, *directories: str) -> tuple[Layout, ...]:
  sizes = tuple(4 + 4 * axes + count * size for count in (60_000, 10_000)
                for axes, size in ((3, 28 * 28), (1, 1)))
  md5 = dict(zip(_FILES, _MD5[name]))
  return tuple(Layout(directory, '', md5, decode, sizes)
               for directory in directories)


MNIST = PublishedDataset(
    name='mnist',
    title='MNIST',
    url='https://ossci-datasets.s3.amazonaws.com/mnist/',
    url_md5='',
    layouts=_layouts('mnist', '.', 'mnist', 'MNIST/raw'),
    num_images=(60_000, 10_000),
    shape=(28, 28, 1),
    class_names=tuple('0123456789'),
    mean=(0.1307,),
    std=(0.3081,),
    augmentation='none',
    prepared_name='mnist',
    other_datasets=dict.fromkeys(_MD5['fashion_mnist'], 'fashion_mnist'))

FASHION_MNIST = MNIST._replace(
    name='fashion_mnist',
    title='Fashion-MNIST',
    url='http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/',
    layouts=_layouts('fashion_mnist', '.', 'fashion_mnist', 'FashionMNIST/raw'),
    class_names=('T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat',
                 'Sandal', 'Shirt', 'Sneaker', 'Bag', 'Ankle boot'),
    mean=(0.2860,),
    std=(0.3530,),
    prepared_name='fashion_mnist',
    other_datasets=dict.fromkeys(_MD5['mnist'], 'mnist'))
