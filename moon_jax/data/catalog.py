"""What is known about each data set; downloads, finds and verifies them."""

from collections.abc import Iterator
import pathlib
import shutil
from typing import NamedTuple

import numpy as np

from moon_jax.config import suggest
from moon_jax.data import clients as clients_lib
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import published as published_lib
from moon_jax.data.sources import tiny_imagenet
from moon_jax.errors import UserError

_MEGABYTE = 10**6
_MAX_CLASSES = 20  # listed one by one


class Entry(NamedTuple):
  """A data set that `moon-jax train --dataset=NAME` reads."""

  title: str
  examples: str  # numbers of training and test examples
  inputs: str  # shape
  classes: str  # their number
  license: str
  page: str  # its description
  flags: str  # of a first run, besides --dataset and --data_dir
  downloads: tuple[published_lib.Download, ...] = ()
  megabytes: int = 0  # of the downloads
  cached_megabytes: int = 0  # of the decoded images
  by_hand: str = ''  # how to obtain it if it has no downloads

  @property
  def is_included(self) -> bool:
    """Whether it needs no files."""
    return not self.downloads and not self.by_hand


_LEAF = 'https://leaf.cmu.edu'
_SHAKESPEARE = (
    'run data/shakespeare/preprocess.sh of LEAF '
    '(https://github.com/TalwalkarLab/leaf), or python -m experiments.'
    'shakespeare_leaf DIR in the repository of moon_jax')
_IMAGES = '--algorithm=fedavg --num_rounds=10 --local_epochs=1'
_NATURAL = f'--partition=natural {_IMAGES} --batch_size=20'

ENTRIES = {
    'digits': Entry(
        'Handwritten digits of scikit-learn', '1,438, 359', '32x32x1', '10',
        'CC BY 4.0', 'https://doi.org/10.24432/C50P49', _IMAGES),
    'breast_cancer': Entry(
        'Breast Cancer Wisconsin (Diagnostic)', '456, 113', '30', '2',
        'CC BY 4.0', 'https://doi.org/10.24432/C5DW2B',
        f'--model=mlp --batch_size=16 {_IMAGES}'),
    **{name: Entry(
        data.title, '{:,}, {:,}'.format(*data.num_images),
        'x'.join(map(str, data.shape)), str(len(data.class_names)),
        data.license, data.page, _IMAGES, data.downloads, data.megabytes)
       for name, data in sources.PUBLISHED.items()},
    'tiny_imagenet': Entry(
        'Tiny-ImageNet', '100,000, 10,000', '64x64x3', '200',
        'non-commercial research', 'https://www.image-net.org/download.php',
        _IMAGES, (tiny_imagenet.DOWNLOAD,),
        megabytes=248, cached_megabytes=1_352),
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
        by_hand=_SHAKESPEARE),
    'shakespeare_tokens': Entry(
        'Shakespeare, the next character at every position', 'by file',
        '80 characters', '80', 'public domain', _LEAF,
        f'--model=transformer {_NATURAL} --num_clients=40',
        by_hand=_SHAKESPEARE),
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
  paths = {file: file.path(root) for file in entry.downloads}
  try:
    root.mkdir(parents=True, exist_ok=True)
    for path in paths.values():
      path.parent.mkdir(exist_ok=True)
    free = shutil.disk_usage(root).free
  except OSError as error:
    raise UserError(f'--data_dir={root} must be a writable directory, got '
                    f'{error.strerror}; name another') from error
  needed = (entry.megabytes + entry.cached_megabytes) * _MEGABYTE - sum(
      path.stat().st_size for path in paths.values() if path.is_file())
  if free < needed:
    raise UserError(
        f'--data_dir={root} must have {needed / _MEGABYTE:,.0f} MB free for '
        f'{entry.title}, got {free / _MEGABYTE:,.0f} MB; name a directory of '
        'another disk')
  for file, path in paths.items():
    url = f'{mirror.rstrip("/")}/{path.name}' if mirror else file.url
    try:
      published_lib.fetch(url, file.md5, path.parent)
    except UserError as error:
      others = [other.url for other, path in paths.items()
                if other != file and not path.exists()]
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
           if published_lib.places(published, root)]
  tiny = tiny_imagenet.find(root.absolute())
  if tiny and tiny.stem == tiny_imagenet.FOLDER:
    names.append('tiny_imagenet')
  if (root / 'x_train.npy').exists():
    names.append('npy')
  return names


def check(name: str, data_dir: str) -> tuple[list[str], bool]:
  """Returns lines that describe a data set, and whether it is complete."""
  root, states = pathlib.Path(data_dir), []
  if name in sources.PUBLISHED and root.is_dir():
    states = [state for layout, path in published_lib.places(
        sources.PUBLISHED[name], root)
              for state in published_lib.states(layout, path)]
  lines = [f'  {"BAD" if state.problem else "ok":4}'
           f'{state.path.removeprefix(f"{root}/")}'
           + f': {state.problem.removeprefix("is ")}'.removesuffix(': ')
           for state in states]
  bad = sum(bool(state.problem) for state in states)
  if bad:
    return [*lines, f'{bad} of {len(states)} files are missing or damaged. '
            'Remove the directory or archive that holds them, then download '
            f'it: moon-jax data get {name} --data_dir={data_dir}'], False
  try:
    if name in ENTRIES and ENTRIES[name].downloads:
      dataset = sources.SOURCES[name](data_dir, may_download=False)
    else:
      dataset = sources.load(name, data_dir)
  except UserError as error:
    return [*lines, str(error)], False
  return [*lines, *describe(dataset)], True


def describe(dataset: Dataset) -> Iterator[str]:
  """Yields lines about the sizes, classes and clients of a data set."""
  train, test = (clients_lib.class_counts(
      labels, [np.arange(len(labels))], dataset.num_classes)[0]
                 for labels in (dataset.train_labels, dataset.test_labels))
  kind = ('images' if dataset.is_images else
          f'sequences of {dataset.num_tokens} tokens' if dataset.num_tokens
          else 'rows of features')
  shape = 'x'.join(map(str, dataset.train_inputs.shape[1:]))
  yield (f'  {train.sum():,} training and {test.sum():,} test examples: '
         f'{kind}, {shape}, {dataset.num_classes} classes')
  if dataset.task_name != 'classification':
    yield (f'  task {dataset.task_name}: {dataset.train_labels.dtype} labels '
           f'{list(dataset.train_labels.shape)}')
  elif train.min() == train.max() and test.min() == test.max():
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
