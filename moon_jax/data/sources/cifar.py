"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in all published layouts.

https://www.cs.toronto.edu/~kriz/cifar.html. Files are verified by md5. The
checksums of the python layouts are published. Those of the binary layouts were
computed from the published pixels and labels, in the same order.

The published binary files of CIFAR-100 may have another order. A binary file
with another md5 is therefore used, with a warning, if its labels are complete:
exactly 500 (train.bin) or 100 (test.bin) images of each fine class, each with
the coarse label of its class. Its pixels cannot be verified, and another order
changes the partition.
"""

from functools import partial
import io
import pickle

import numpy as np

from moon_jax.data.io.published import Layout, PublishedDataset

_PIXELS = 3 * 32 * 32

_RECONSTRUCT = np.empty(0).__reduce__()[0]  # makes the array of a pickle
# What pickled arrays name; `pickle.load` alone runs any function that it reads.
_ALLOWED = {
    ('numpy', 'ndarray'): np.ndarray,
    ('numpy', 'dtype'): np.dtype,
    ('numpy.core.multiarray', '_reconstruct'): _RECONSTRUCT,
    ('numpy._core.multiarray', '_reconstruct'): _RECONSTRUCT,
    # Python 3 writes bytes like this in protocol 2.
    ('_codecs', 'encode'): lambda text, encoding: text.encode('latin1'),
}


class _Unpickler(pickle.Unpickler):

  def find_class(self, module, name):
    if (module, name) not in _ALLOWED:
      raise pickle.UnpicklingError(f'{module}.{name} is not allowed')
    return _ALLOWED[module, name]


def decode_python(labels_key: bytes, blob: bytes
                  ) -> tuple[np.ndarray, list[int]]:
  """Decodes a pickled dict of data, uint8 [n, 3072], and a list of n labels."""
  try:
    batch = _Unpickler(io.BytesIO(blob), encoding='bytes').load()
    return _images(batch[b'data']), batch[labels_key]
  except Exception as error:  # a damaged pickle can raise almost anything
    raise ValueError(f'not a pickle of plain arrays: {error}') from error


def decode_binary(num_labels: int, blob: bytes
                  ) -> tuple[np.ndarray, np.ndarray]:
  """Decodes records of label bytes (the last one is the class) and pixels.
  """
  records = _records(blob, num_labels)
  return _images(records[:, num_labels:]), records[:, num_labels - 1]


def _records(blob: bytes, num_labels: int) -> np.ndarray:
  """Returns uint8 [n, num_labels + 3072]."""
  size = num_labels + _PIXELS
  if len(blob) % size:
    raise ValueError(f'the size must be a multiple of {size:,} bytes per image,'
                     f' got {len(blob):,} bytes')
  return np.frombuffer(blob, np.uint8).reshape(-1, size)


def _images(pixels) -> np.ndarray:
  """Converts color planes [n, 3072] to images [n, 32, 32, 3]."""
  if np.ndim(pixels) != 2 or np.shape(pixels)[1] != _PIXELS:
    raise ValueError(f'pixels must have shape [n, {_PIXELS}], got '
                     f'{list(np.shape(pixels))}')
  return np.reshape(pixels, (-1, 3, 32, 32)).transpose(0, 2, 3, 1)


def _check_cifar100(blob: bytes, count: int) -> None:
  """Checks the labels of a file of `count` images of the binary layout."""
  coarse, fine = _records(blob, 2)[:, :2].T
  per_class, num_classes = count // len(_COARSE), len(_COARSE)
  if fine.max(initial=0) >= num_classes:
    raise ValueError(f'labels must be 0 to {num_classes - 1}, got {fine.max()}')
  counts = np.bincount(fine, minlength=num_classes)
  worst = int(abs(counts - per_class).argmax())
  if counts[worst] != per_class:
    raise ValueError(f'expected {per_class:,} images of each class, got '
                     f'{counts[worst]:,} of class {worst} '
                     f'({CIFAR100.class_names[worst]})')
  wrong = np.flatnonzero(coarse != _COARSE[fine])
  if len(wrong):
    raise ValueError(f'{len(wrong):,} image(s) have another coarse label than '
                     f'that of their class, such as image {wrong[0]:,}')


# Fine label -> coarse label of CIFAR-100.
_COARSE = np.array([
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5,
    10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8,
    15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12,
    16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19,
    5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13])


CIFAR10 = PublishedDataset(
    name='cifar10',
    title='CIFAR-10',
    url='https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz',
    url_md5='c58f30108f718f92721af3b95e74349a',
    layouts=(
        Layout('cifar-10-batches-py', 'cifar-10-python.tar.gz', {
            'data_batch_1': 'c99cafc152244af753f735de768cd75f',
            'data_batch_2': 'd4bba439e000b95fd0a9bffe97cbabec',
            'data_batch_3': '54ebc095f3ab1f0389bbae665268c751',
            'data_batch_4': '634d18415352ddfa80567beed471001a',
            'data_batch_5': '482c414d41f54cd18b22e5b47cb7c3cb',
            'test_batch': '40351d587109b95175f43aff81a1287e',
        }, partial(decode_python, b'labels'), num_bytes=(
            31_035_704, 31_035_320, 31_035_999, 31_035_696, 31_035_623,
            31_035_526)),
        # Computed from the published images and labels.
        Layout('cifar-10-batches-bin', 'cifar-10-binary.tar.gz', {
            'data_batch_1.bin': '5dd7e06a14cb22eb9f671a540d1b7c25',
            'data_batch_2.bin': '5ea93a67294ea407fff1d09f752e9692',
            'data_batch_3.bin': '942cd6a4bcdd0dd3c604fbe906cb4421',
            'data_batch_4.bin': 'ae636b3ba5c66a11e91e8cb52e771fcb',
            'data_batch_5.bin': '53f37980c15c3d472c316c40844f3f0d',
            'test_batch.bin': '803d5f7f4d78ea53de84dbe85f74fb6d',
        }, partial(decode_binary, 1),
             num_bytes=(10_000 * (1 + _PIXELS),) * 6),
    ),
    num_images=(10_000,) * 6,
    shape=(32, 32, 3),
    class_names=('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog',
                 'horse', 'ship', 'truck'),
    # From the released code of MOON, for pixels in 0..255.
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
    std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    augmentation='reflect_crop_flip',
    prepared_name='cifar10')

CIFAR100 = PublishedDataset(
    name='cifar100',
    title='CIFAR-100',
    url='https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz',
    url_md5='eb9058c3a382ffc7106e4002c42a8d85',
    layouts=(
        Layout('cifar-100-python', 'cifar-100-python.tar.gz', {
            'train': '16019d7e3df5f24257cddd939b257f8d',
            'test': 'f0ef6b0ae62326f3e7ffdfab6717acfc',
        }, partial(decode_python, b'fine_labels'),
             num_bytes=(155_249_918, 31_049_707)),
        # Computed from the published images and labels.
        Layout('cifar-100-binary', 'cifar-100-binary.tar.gz', {
            'train.bin': '6172c7755cfe09b2fe270c85cebc1b15',
            'test.bin': '4499cfba6c016c1be1438163640a0898',
        }, partial(decode_binary, 2),
             num_bytes=(50_000 * (2 + _PIXELS), 10_000 * (2 + _PIXELS)),
             check_unknown_fn=_check_cifar100),
    ),
    num_images=(50_000, 10_000),
    shape=(32, 32, 3),
    class_names=tuple(
        'apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle '
        'bowl boy bridge bus butterfly camel can castle caterpillar cattle '
        'chair chimpanzee clock cloud cockroach couch crab crocodile cup '
        'dinosaur dolphin elephant flatfish forest fox girl hamster house '
        'kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man '
        'maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid '
        'otter palm_tree pear pickup_truck pine_tree plain plate poppy '
        'porcupine possum rabbit raccoon ray road rocket rose sea seal shark '
        'shrew skunk skyscraper snail snake spider squirrel streetcar '
        'sunflower sweet_pepper table tank telephone television tiger tractor '
        'train trout tulip turtle wardrobe whale willow_tree wolf woman '
        'worm'.split()),
    mean=(0.5070751592371323, 0.48654887331495095, 0.4409178433670343),
    std=(0.2673342858792401, 0.2564384629170883, 0.27615047132568404),
    augmentation='zero_crop_flip_rotate',
    prepared_name='cifar100')
