"""What is known about each data set; downloads, finds and verifies them."""

from collections.abc import Iterator
import pathlib
import shutil
from typing import NamedTuple

import numpy as np

from moon_jax.config import suggest
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import download
from moon_jax.data.io import published as published_lib
from moon_jax.data.sources import cifar, mnist, svhn, tiny_imagenet
from moon_jax.errors import UserError

_MEGABYTE = 10**6
_MAX_CLASSES = 20  # listed one by one
_TINY_IMAGENET = pathlib.PurePosixPath(tiny_imagenet.URL)
_SAME_FILES = {'mnist', 'fashion_mnist'}  # have files of the same names


class Download(NamedTuple):
  """A published file."""

  url: str
  checksum: str  # md5 in hexadecimal
  directory: str = ''  # where it is written, relative to --data_dir

  def path(self, root: pathlib.Path) -> pathlib.Path:
    """Returns where it is written in the directory --data_dir."""
    return root / self.directory / self.url.rpartition('/')[2]


class Entry(NamedTuple):
  """A data set that `moon-jax train --dataset=NAME` reads."""

  title: str
  examples: str  # numbers of training and test examples
  inputs: str  # shape
  classes: str  # their number
  license: str
  page: str  # its description
  flags: str  # of a first run, besides --dataset and --data_dir
  downloads: tuple[Download, ...] = ()
  megabytes: int = 0  # of the downloads
  unpacked_megabytes: int = 0  # of what is cached besides
  by_hand: str = ''  # how to obtain it if it has no downloads

  @property
  def is_included(self) -> bool:
    """Whether it needs no files."""
    return not self.downloads and not self.by_hand


_NONCOMMERCIAL = 'non-commercial research'
_LEAF = 'https://leaf.cmu.edu'
_IMAGES = '--algorithm=fedavg --num_rounds=10 --local_epochs=1'
_NATURAL = f'--partition=natural {_IMAGES} --batch_size=20'


def _entry(published: published_lib.PublishedDataset, license_text: str,
           page: str, megabytes: int, *downloads: Download) -> Entry:
  *train, test = published.num_images
  return Entry(
      published.title, f'{sum(train):,}, {test:,}',
      'x'.join(map(str, published.shape)), str(len(published.class_names)),
      license_text, page, _IMAGES, downloads, megabytes)


def _cifar(published: published_lib.PublishedDataset, megabytes: int) -> Entry:
  return _entry(published, 'no license stated',
                'https://www.cs.toronto.edu/~kriz/cifar.html', megabytes,
                Download(published.url, published.url_md5))


def _idx(published: published_lib.PublishedDataset, license_text: str,
         page: str, megabytes: int, *md5: str) -> Entry:
  """Takes the checksums of compressed files, as torchvision publishes them."""
  return _entry(published, license_text, page, megabytes, *(
      Download(f'{published.url}{name}.gz', checksum, published.name)
      for name, checksum in zip(published.layouts[0].md5, md5)))


ENTRIES = {
    'digits': Entry(
        'Handwritten digits of scikit-learn', '1,438, 359', '32x32x1', '10',
        'CC BY 4.0', 'https://doi.org/10.24432/C50P49', _IMAGES),
    'breast_cancer': Entry(
        'Breast Cancer Wisconsin (Diagnostic)', '456, 113', '30', '2',
        'CC BY 4.0', 'https://doi.org/10.24432/C5DW2B',
        f'--model=mlp --batch_size=16 {_IMAGES}'),
    'cifar10': _cifar(cifar.CIFAR10, 170),
    'cifar100': _cifar(cifar.CIFAR100, 169),
    'tiny_imagenet': Entry(
        'Tiny-ImageNet', '100,000, 10,000', '64x64x3', '200', _NONCOMMERCIAL,
        'https://www.image-net.org/download.php', _IMAGES,
        (Download(tiny_imagenet.URL, tiny_imagenet.MD5),),
        megabytes=248, unpacked_megabytes=1_352),
    'mnist': _idx(
        mnist.MNIST, 'CC BY-SA 3.0', 'https://yann.lecun.com/exdb/mnist', 12,
        'f68b3c2dcbeaaa9fbdd348bbdeb94873', 'd53e105ee54ea40749a09fcbcd1e9432',
        '9fb629c4189551a2d022fa330f9573f3', 'ec29112dd5afa0611ce80d1b7f02629c'),
    'fashion_mnist': _idx(
        mnist.FASHION_MNIST, 'MIT',
        'https://github.com/zalandoresearch/fashion-mnist', 31,
        '8d4fb7e6c68d591d4c3dfef9ec88bf0d', '25c81989df183df01b3e8a0aad5dffbe',
        'bef4ecab320f06d8554ea6380940ec79', 'bb300cfdad3c16e7a12a480ee83cd310'),
    'svhn': _entry(
        svhn.SVHN, 'non-commercial use only', svhn.SVHN.url, 246, *(
            Download(f'{svhn.SVHN.url}{name}', md5, 'svhn')
            for name, md5 in svhn.SVHN.layouts[0].md5.items())),
    'femnist': Entry(
        'FEMNIST, about 3,500 writers', 'by file', '28x28x1', '62',
        'no license stated (from NIST Special Database 19)', _LEAF,
        f'{_NATURAL} --num_clients=3400 --participation=0.003',
        by_hand='run data/femnist/preprocess.sh -s niid --sf 1.0 -k 0 -t sample'
        ' of LEAF (https://github.com/TalwalkarLab/leaf), or train on the copy '
        'of the Hugging Face Hub: --dataset=hf:flwrlabs/femnist,'
        'test_fraction=0.1'),
    'shakespeare': Entry(
        "Shakespeare's plays, by role", 'by file', '80 characters', '80',
        'public domain', _LEAF,
        f'--model=char_lstm {_NATURAL} --num_clients=40',
        by_hand='run data/shakespeare/preprocess.sh of LEAF '
        '(https://github.com/TalwalkarLab/leaf), or python -m experiments.'
        'shakespeare_leaf DIR in the repository of moon_jax'),
}


def downloadable(name: str) -> Entry:
  """Returns the description of a data set that can be downloaded."""
  if name not in ENTRIES:
    hint = suggest.value('dataset', name, list(ENTRIES))
    raise UserError(f'NAME must be one of {", ".join(ENTRIES)}; got '
                    f'{name}{hint.replace("--dataset=", "")}')
  entry = ENTRIES[name]
  if entry.by_hand:
    raise UserError(f'{entry.title} has no file that can be downloaded without '
                    f'you. See {entry.page}: {entry.by_hand}')
  return entry


def get(entry: Entry, root: pathlib.Path, mirror: str = '') -> None:
  """Downloads the files of a data set that a directory lacks.

  Each is checked against its published checksum. An interrupted download
  resumes. `root` is created. `mirror` is the URL of a directory that holds the
  same files; '' downloads them from where they are published.
  """
  try:
    root.mkdir(parents=True, exist_ok=True)
    for file in entry.downloads:
      file.path(root).parent.mkdir(exist_ok=True)
    free = shutil.disk_usage(root).free
  except OSError as error:
    raise UserError(f'--data_dir={root} must be a writable directory, got '
                    f'{error.strerror}; name another') from error
  paths = [file.path(root) for file in entry.downloads]
  needed = (entry.megabytes + entry.unpacked_megabytes) * _MEGABYTE - sum(
      path.stat().st_size for path in paths if path.is_file())
  if free < needed:
    raise UserError(
        f'--data_dir={root} must have {needed / _MEGABYTE:,.0f} MB free for '
        f'{entry.title}, got {free / _MEGABYTE:,.0f} MB; name a directory of '
        'another disk')
  for i, file in enumerate(entry.downloads):
    url = f'{mirror.rstrip("/")}/{paths[i].name}' if mirror else file.url
    try:
      download.fetch(url, file.checksum, paths[i].parent)
    except UserError as error:
      others = [other.url for other, path in zip(
          entry.downloads[i + 1:], paths[i + 1:]) if not path.exists()]
      raise UserError(
          '. The same for '.join([str(error), *others])) from error


def find(data_dir: str) -> list[str]:
  """Returns the names of the data sets that have files in a directory.

  `data_dir` is an existing directory, or an npz file.
  """
  root = pathlib.Path(data_dir).expanduser()
  if root.suffix == '.npz' and root.is_file():
    return ['npz']
  if not root.is_dir():
    raise UserError(f'DIR must be a directory or an npz file, got {data_dir}')
  names = [name for name, published in sources.PUBLISHED.items()
           if published.find(root)]
  if {*names} >= _SAME_FILES:  # keep the one that the files are of
    intact = {name for name in _SAME_FILES if any(
        not state.problem for state in published_lib.verify(
            sources.PUBLISHED[name], root))} or {'mnist'}
    names = [name for name in names if name not in _SAME_FILES - intact]
  if (root.name == _TINY_IMAGENET.stem or (root / _TINY_IMAGENET.stem).is_dir()
      or (root / _TINY_IMAGENET.name).exists()):
    names.append('tiny_imagenet')
  if (root / 'x_train.npy').exists():
    names.append('npy')
  return names


def check(name: str, data_dir: str) -> tuple[list[str], bool]:
  """Returns lines that describe a data set, and whether it is complete."""
  published, root, states = sources.PUBLISHED.get(name), pathlib.Path(
      data_dir), []
  if published and root.is_dir():
    states = list(published_lib.verify(published, root))
  lines = [f'  {"BAD" if state.problem else "ok":4}'
           f'{state.path.removeprefix(f"{root}/")}'
           + f': {state.problem.removeprefix("is ") or state.note}'
           .removesuffix(': ')
           for state in states]
  bad = sum(bool(state.problem) for state in states)
  if bad:
    return [*lines, f'{bad} of {len(states)} files are missing or damaged. '
            'Remove the directory or archive that holds them, then download '
            f'it: moon-jax data get {name} --data_dir={data_dir}'], False
  try:
    if published:
      dataset = sources.load_published(name, data_dir, may_download=False)
    elif name == 'tiny_imagenet':
      dataset = tiny_imagenet.load(data_dir, may_download=False)
    else:
      dataset = sources.load(name, data_dir)
  except UserError as error:
    return [*lines, str(error)], False
  return [*lines, *describe(dataset)], True


def describe(dataset: Dataset) -> Iterator[str]:
  """Yields lines about the sizes, classes and clients of a data set."""
  train, test = (np.bincount(labels, minlength=dataset.num_classes)
                 for labels in (dataset.train_labels, dataset.test_labels))
  kind = ('images' if dataset.is_images else
          f'sequences of {dataset.num_tokens} tokens' if dataset.num_tokens
          else 'rows of features')
  shape = 'x'.join(map(str, dataset.train_inputs.shape[1:]))
  yield (f'  {train.sum():,} training and {test.sum():,} test examples: '
         f'{kind}, {shape}, {dataset.num_classes} classes')
  if train.min() == train.max() and test.min() == test.max():
    yield f'  {train[0]:,} and {test[0]:,} of each class'
  elif dataset.num_classes <= _MAX_CLASSES:
    width = max(5, *map(len, dataset.class_names))
    yield f'  {"class":{width}} {"training":>9} {"test":>9}'
    for row in zip(dataset.class_names, train, test):
      yield f'  {row[0]:{width}} {row[1]:9,} {row[2]:9,}'
  else:
    for part, counts in ('training', train), ('test', test):
      low, high = counts.argmin(), counts.argmax()
      yield (f'  {counts[low]:,} ({dataset.class_names[low]}) to '
             f'{counts[high]:,} ({dataset.class_names[high]}) {part} examples '
             'per class')
  if dataset.train_clients is not None:
    sizes = np.bincount(dataset.train_clients)
    yield (f'  {len(sizes):,} natural clients with {sizes.min():,} to '
           f'{sizes.max():,} training examples, median {np.median(sizes):,.0f}')
