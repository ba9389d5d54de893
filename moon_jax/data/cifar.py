"""CIFAR-10 (Krizhevsky, 2009) in each of its published forms.

https://www.cs.toronto.edu/~kriz/cifar.html. Every form gives the same arrays,
in the official order, on which the published partitions rest.
"""

from collections.abc import Callable
import hashlib
import pathlib
import tarfile
import zlib

import numpy as np

from moon_jax.data import download
from moon_jax.data import plain_pickle
from moon_jax.data import prepared
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz'
_URL_MD5 = 'c58f30108f718f92721af3b95e74349a'
_CLASSES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog',
            'horse', 'ship', 'truck')
_IMAGES_A_FILE = 10_000
_MOST_BYTES = 2**26  # read of a file; twice what the published ones hold

# The five training files and the test file, with their published checksums.
_PYTHON_MD5 = {
    'data_batch_1': 'c99cafc152244af753f735de768cd75f',
    'data_batch_2': 'd4bba439e000b95fd0a9bffe97cbabec',
    'data_batch_3': '54ebc095f3ab1f0389bbae665268c751',
    'data_batch_4': '634d18415352ddfa80567beed471001a',
    'data_batch_5': '482c414d41f54cd18b22e5b47cb7c3cb',
    'test_batch': '40351d587109b95175f43aff81a1287e',
}
# Not published; of the same images and labels in the published layout.
_BINARY_MD5 = {
    'data_batch_1.bin': '5dd7e06a14cb22eb9f671a540d1b7c25',
    'data_batch_2.bin': '5ea93a67294ea407fff1d09f752e9692',
    'data_batch_3.bin': '942cd6a4bcdd0dd3c604fbe906cb4421',
    'data_batch_4.bin': 'ae636b3ba5c66a11e91e8cb52e771fcb',
    'data_batch_5.bin': '53f37980c15c3d472c316c40844f3f0d',
    'test_batch.bin': '803d5f7f4d78ea53de84dbe85f74fb6d',
}

_REMEDY = ('Restore it from the published archive, or remove the directory or '
           'archive it is in and run again to download')


def load_cifar10(data_dir: str) -> Dataset:
  """Reads CIFAR-10 from `data_dir`, or downloads it there.

  Looked for, in this order: `cifar-10-batches-py/`, `cifar-10-batches-bin/`,
  `cifar-10-python.tar.gz`, `cifar-10-binary.tar.gz`, and `cifar10/`, prepared
  by tensorflow-datasets as array_record. `data_dir` may also be one of these
  directories itself. "tfds" prepares the last with TensorFlow.

  Raises:
    UserError: see `moon_jax.data.sources.load`.
  """
  if not data_dir:
    raise UserError(
        '--data_dir must name a directory for --dataset=cifar10; got none. '
        'Give one that holds cifar-10-batches-py/ or cifar-10-python.tar.gz, '
        'or an empty one to download into')
  if data_dir == 'tfds':
    return _dataset(*prepared.prepare('cifar10'))
  root = pathlib.Path(data_dir).expanduser()
  if root.exists() and not root.is_dir():
    raise UserError(f'--data_dir={data_dir} is a file; name the directory that '
                    'holds it')
  if not root.is_dir():
    raise UserError(
        f'--data_dir={data_dir} is not a directory; create it (mkdir -p '
        f'{data_dir}) to download CIFAR-10 into it, or name the one that '
        'holds it')
  if root.name in ('cifar-10-batches-py', 'cifar-10-batches-bin'):
    root = root.parent
  return _dataset(*_read(root))


def _read(root: pathlib.Path):
  """Returns train images, train labels, test images, test labels."""
  python, binary = root / 'cifar-10-batches-py', root / 'cifar-10-batches-bin'
  if python.exists():
    return _read_files(_files_of(python), _PYTHON_MD5, _decode_python)
  if binary.exists():
    return _read_files(_files_of(binary), _BINARY_MD5, _decode_binary)
  archive = root / 'cifar-10-python.tar.gz'
  if archive.exists():
    return _read_archive(archive, _PYTHON_MD5, _decode_python)
  if (root / 'cifar-10-binary.tar.gz').exists():
    return _read_archive(
        root / 'cifar-10-binary.tar.gz', _BINARY_MD5, _decode_binary)
  directory = prepared.find(root, 'cifar10')
  if directory:
    return prepared.read(directory)
  print(f'CIFAR-10 is not in {root} (looked for {python.name}/, '
        f'{binary.name}/, {archive.name}, cifar-10-binary.tar.gz and '
        f'cifar10/); downloading {_URL}', flush=True)
  archive = download.fetch(_URL, _URL_MD5, root)
  return _read_archive(archive, _PYTHON_MD5, _decode_python)


def _files_of(directory: pathlib.Path):
  """Returns read(name) -> (path, bytes) of the files in `directory`."""
  def read(name):
    path = directory / name
    if not path.is_file():  # nor a pipe or a device, which never end
      raise UserError(
          f'--data_dir: {path} is missing or no file. {_REMEDY}')
    try:
      with open(path, 'rb') as file:
        return str(path), file.read(_MOST_BYTES)
    except OSError as error:
      raise UserError(f'--data_dir: {path} cannot be read '
                      f'({error.strerror}); mend its permissions') from error
  return read


def _read_archive(path: pathlib.Path, md5: dict[str, str], decode: Callable):
  """As `_read_files`, straight from the archive; nothing is unpacked."""
  try:
    with tarfile.open(path) as tar:
      blobs = {}
      for member in tar:
        name = member.name.rpartition('/')[2]
        if name in md5 and member.isfile():
          blobs[name] = tar.extractfile(member).read(_MOST_BYTES)
  except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
    reason = str(error).partition('\n')[0]
    raise UserError(f'--data_dir: {path} is not a whole archive ({reason}). '
                    f'{_REMEDY}') from error

  def read(name):
    if name not in blobs:
      raise UserError(f'--data_dir: {path} holds no {name}. {_REMEDY}')
    return f'{path}:{name}', blobs.pop(name)

  return _read_files(read, md5, decode)


def _read_files(read: Callable, md5: dict[str, str], decode: Callable):
  """Checks and decodes the six files, in the official order."""
  images = np.empty((6 * _IMAGES_A_FILE, 32, 32, 3), np.uint8)
  labels = np.empty(6 * _IMAGES_A_FILE, np.int32)
  for k, (name, expected) in enumerate(md5.items()):
    path, blob = read(name)
    found = hashlib.md5(blob).hexdigest()
    if found != expected:
      raise UserError(
          f'--data_dir: {path} is not the published file: {len(blob):,} bytes '
          f'with md5 {found}, where {expected} was expected. {_REMEDY}')
    part = slice(k * _IMAGES_A_FILE, (k + 1) * _IMAGES_A_FILE)
    try:
      pixels, labels[part] = decode(blob)
      planes = np.reshape(pixels, (_IMAGES_A_FILE, 3, 32, 32))
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
          f'--data_dir: {path} is damaged: {error}. {_REMEDY}') from error
    images[part] = planes.transpose(0, 2, 3, 1)
  split = 5 * _IMAGES_A_FILE
  return images[:split], labels[:split], images[split:], labels[split:]


def _decode_python(blob: bytes):
  """A pickled dict: b'data' uint8 [10000, 3072], b'labels' a list."""
  batch = plain_pickle.loads_dict(blob)
  return batch[b'data'], batch[b'labels']


def _decode_binary(blob: bytes):
  """10,000 records of a label byte and 3,072 pixels in planes R, G, B."""
  records = np.frombuffer(blob, np.uint8).reshape(_IMAGES_A_FILE, 3073)
  return records[:, 1:], records[:, 0]


def _dataset(train_images, train_labels, test_images, test_labels) -> Dataset:
  return Dataset(
      name='cifar10',
      train_images=train_images,
      train_labels=train_labels,
      test_images=test_images,
      test_labels=test_labels,
      class_names=_CLASSES,
      # As published with MOON, in 0..255 over 255.
      mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
      std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
      augmentation='reflect_crop_flip',
  )
