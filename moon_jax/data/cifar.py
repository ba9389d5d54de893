"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in each of their published forms.

https://www.cs.toronto.edu/~kriz/cifar.html. Every form gives the same arrays,
in the official order, on which the published partitions rest.
"""

from collections.abc import Callable
import hashlib
import pathlib
import tarfile
from typing import NamedTuple
import zlib

import numpy as np

from moon_jax.data import download
from moon_jax.data import plain_pickle
from moon_jax.data import prepared
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

_PIXELS = 3 * 32 * 32
_MOST_BYTES = 2**28  # read of a file; more than any published one holds
_REMEDY = ('Restore it from the published archive, or remove the directory or '
           'archive it is in and run again to download')


class Form(NamedTuple):
  """A published layout: a directory of files, also packed as one archive."""

  directory: str
  archive: str
  md5: dict[str, str]  # of the training files in order, then the test file
  decode: Callable  # bytes -> (pixels [n, 3072] in planes R, G, B, labels)


class Published(NamedTuple):
  """One of the two data sets."""

  name: str
  title: str
  url: str
  url_md5: str
  forms: tuple[Form, ...]  # in the order in which they are looked for
  num_images: tuple[int, ...]  # of each file
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  augmentation: str


def _decode_python(labels_key: bytes) -> Callable:
  """A pickled dict: b'data' uint8 [n, 3072], and a list of labels."""
  def decode(blob):
    batch = plain_pickle.loads_dict(blob)
    return batch[b'data'], batch[labels_key]
  return decode


def _decode_binary(num_labels: int) -> Callable:
  """Records of label bytes, of which the last counts, and 3,072 pixels."""
  def decode(blob):
    records = np.frombuffer(blob, np.uint8).reshape(-1, num_labels + _PIXELS)
    return records[:, num_labels:], records[:, num_labels - 1]
  return decode


CIFAR10 = Published(
    name='cifar10',
    title='CIFAR-10',
    url='https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz',
    url_md5='c58f30108f718f92721af3b95e74349a',
    forms=(
        Form('cifar-10-batches-py', 'cifar-10-python.tar.gz', {
            'data_batch_1': 'c99cafc152244af753f735de768cd75f',
            'data_batch_2': 'd4bba439e000b95fd0a9bffe97cbabec',
            'data_batch_3': '54ebc095f3ab1f0389bbae665268c751',
            'data_batch_4': '634d18415352ddfa80567beed471001a',
            'data_batch_5': '482c414d41f54cd18b22e5b47cb7c3cb',
            'test_batch': '40351d587109b95175f43aff81a1287e',
        }, _decode_python(b'labels')),
        # Not published; of the same images and labels in the published layout.
        Form('cifar-10-batches-bin', 'cifar-10-binary.tar.gz', {
            'data_batch_1.bin': '5dd7e06a14cb22eb9f671a540d1b7c25',
            'data_batch_2.bin': '5ea93a67294ea407fff1d09f752e9692',
            'data_batch_3.bin': '942cd6a4bcdd0dd3c604fbe906cb4421',
            'data_batch_4.bin': 'ae636b3ba5c66a11e91e8cb52e771fcb',
            'data_batch_5.bin': '53f37980c15c3d472c316c40844f3f0d',
            'test_batch.bin': '803d5f7f4d78ea53de84dbe85f74fb6d',
        }, _decode_binary(1)),
    ),
    num_images=(10_000,) * 6,
    class_names=('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog',
                 'horse', 'ship', 'truck'),
    # As published with MOON, in 0..255 over 255.
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
    std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    augmentation='reflect_crop_flip')

CIFAR100 = Published(
    name='cifar100',
    title='CIFAR-100',
    url='https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz',
    url_md5='eb9058c3a382ffc7106e4002c42a8d85',
    forms=(
        Form('cifar-100-python', 'cifar-100-python.tar.gz', {
            'train': '16019d7e3df5f24257cddd939b257f8d',
            'test': 'f0ef6b0ae62326f3e7ffdfab6717acfc',
        }, _decode_python(b'fine_labels')),
        # Checksums are neither published nor known here: sizes and labels are
        # checked alone.
        Form('cifar-100-binary', 'cifar-100-binary.tar.gz', {
            'train.bin': '', 'test.bin': '',
        }, _decode_binary(2)),
    ),
    num_images=(50_000, 10_000),
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
    augmentation='zero_crop_flip_rotate')


def load_cifar10(data_dir: str) -> Dataset:
  """Reads CIFAR-10; see `load`."""
  return load(CIFAR10, data_dir)


def load_cifar100(data_dir: str) -> Dataset:
  """Reads CIFAR-100 with its 100 fine labels; see `load`."""
  return load(CIFAR100, data_dir)


def load(published: Published, data_dir: str) -> Dataset:
  """Reads a data set from `data_dir`, or downloads it there.

  Looked for, in this order: the directory of each form (python, binary), the
  archive of each, and `cifar10/` or `cifar100/`, prepared by
  tensorflow-datasets as array_record. `data_dir` may also be one of these
  directories itself. "tfds" prepares the last with TensorFlow.

  Raises:
    UserError: see `moon_jax.data.sources.load`.
  """
  python = published.forms[0]
  if not data_dir:
    raise UserError(
        f'--data_dir must name a directory for --dataset={published.name}; got '
        f'none. Give one that holds {python.directory}/ or {python.archive}, '
        'or an empty one to download into')
  if data_dir == 'tfds':
    return _dataset(published, *prepared.prepare(published.name))
  root = pathlib.Path(data_dir).expanduser()
  if root.exists() and not root.is_dir():
    raise UserError(f'--data_dir={data_dir} is a file; name the directory that '
                    'holds it')
  if not root.is_dir():
    raise UserError(
        f'--data_dir={data_dir} is not a directory; create it (mkdir -p '
        f'{data_dir}) to download {published.title} into it, or name the one '
        'that holds it')
  if root.name in [form.directory for form in published.forms]:
    root = root.parent
  return _dataset(published, *_read(published, root))


def _read(published: Published, root: pathlib.Path):
  """Returns train images, train labels, test images, test labels."""
  for form in published.forms:
    if (root / form.directory).exists():
      return _read_files(published, form, _files_of(root / form.directory))
  for form in published.forms:
    if (root / form.archive).exists():
      return _read_archive(published, form, root / form.archive)
  directory = prepared.find(root, published.name)
  if directory:
    return prepared.read(directory)
  names = ', '.join(
      f'{form.directory}/, {form.archive}' for form in published.forms)
  print(f'{published.title} is not in {root} (looked for {names} and '
        f'{published.name}/); downloading {published.url}', flush=True)
  archive = download.fetch(published.url, published.url_md5, root)
  return _read_archive(published, published.forms[0], archive)


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


def _read_archive(published: Published, form: Form, path: pathlib.Path):
  """As `_read_files`, straight from the archive; nothing is unpacked."""
  try:
    with tarfile.open(path) as tar:
      blobs = {}
      for member in tar:
        name = member.name.rpartition('/')[2]
        if name in form.md5 and member.isfile():
          blobs[name] = tar.extractfile(member).read(_MOST_BYTES)
  except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
    reason = str(error).partition('\n')[0]
    raise UserError(f'--data_dir: {path} is not a whole archive ({reason}). '
                    f'{_REMEDY}') from error

  def read(name):
    if name not in blobs:
      raise UserError(f'--data_dir: {path} holds no {name}. {_REMEDY}')
    return f'{path}:{name}', blobs.pop(name)

  return _read_files(published, form, read)


def _read_files(published: Published, form: Form, read: Callable):
  """Checks and decodes the files, in the official order."""
  images = np.empty((sum(published.num_images), 32, 32, 3), np.uint8)
  labels = np.empty(len(images), np.int32)
  begin = 0
  for (name, expected), count in zip(form.md5.items(), published.num_images):
    path, blob = read(name)
    found = hashlib.md5(blob).hexdigest()
    if expected and found != expected:
      raise UserError(
          f'--data_dir: {path} is not the published file: {len(blob):,} bytes '
          f'with md5 {found}, where {expected} was expected. {_REMEDY}')
    part = slice(begin, begin + count)
    try:
      pixels, labels[part] = form.decode(blob)
      planes = np.reshape(pixels, (count, 3, 32, 32))
      if labels[part].max() >= len(published.class_names):
        raise ValueError(f'a label is {labels[part].max()}')
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
          f'--data_dir: {path} is damaged: {error}. {_REMEDY}') from error
    images[part] = planes.transpose(0, 2, 3, 1)
    begin += count
  split = begin - published.num_images[-1]
  return images[:split], labels[:split], images[split:], labels[split:]


def _dataset(published: Published, train_inputs, train_labels, test_inputs,
             test_labels) -> Dataset:
  return Dataset(
      name=published.name,
      train_inputs=train_inputs,
      train_labels=train_labels,
      test_inputs=test_inputs,
      test_labels=test_labels,
      class_names=published.class_names,
      mean=published.mean,
      std=published.std,
      augmentation=published.augmentation,
  )
