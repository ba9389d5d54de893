"""moon-jax data: downloads, checks and lists data sets.

    moon-jax data list
    moon-jax data get NAME --data_dir=DIR [--mirror=URL]
    moon-jax data check DIR [NAME]

Exit statuses: 0; 1 if `check` finds a data set that is missing or damaged; 2
for invalid input and failed downloads.
"""

import argparse
from collections.abc import Iterator
import pathlib
import shlex
from typing import NamedTuple

import numpy as np

from moon_jax.cli import file_command
from moon_jax.config import spelling
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files, published
from moon_jax.data.sources import tiny_imagenet
from moon_jax.errors import require, UserError


class Entry(NamedTuple):
  """A data set that `moon-jax train --dataset=NAME` reads."""

  title: str
  examples: str  # numbers of training and test examples
  inputs: str  # shape
  classes: str  # their number
  license: str
  page: str  # its description
  flags: str  # of a first run, besides --dataset and --data_dir
  downloads: tuple[published.Download, ...] = ()
  megabytes: int = 0  # of the downloads
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
        megabytes=248),
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

_UCI = f'--model=mlp {_IMAGES} --batch_size=16'
ENTRIES |= {name: Entry(*values, by_hand=f'download its files from {values[5]}')
            for name, values in {
    'medmnist': ('MedMNIST v2, medical images', 'by name', '28x28x1, 3', '2-14',
                 'CC BY 4.0 (dermamnist CC BY-NC 4.0)', 'https://medmnist.com',
                 f'--model=mlp {_IMAGES}'),
    'emnist': ('EMNIST, letters and digits', 'by split', '28x28x1', '10-62',
               'no license stated', 'https://arxiv.org/abs/1702.05373',
               _IMAGES),
    'har': ('UCI HAR, movements of 30 people', '8,240, 2,059', '561', '6',
            'CC BY 4.0', 'https://doi.org/10.24432/C54S4K',
            f'--partition=natural --num_clients=30 {_UCI}'),
    'adult': ('UCI Adult, incomes', '32,561, 16,281', 'table', '2',
              'CC BY 4.0', 'https://doi.org/10.24432/C5XW20',
              _UCI),
    'stackoverflow_tags': (
        'Stack Overflow, tags of questions', 'by argument', '10,000', '500',
        'CC BY-SA 3.0', 'https://storage.googleapis.com/tff-datasets-public',
        f'--model=mlp {_NATURAL} --num_clients=100')}.items()}
ENTRIES['colored_mnist'] = ENTRIES['mnist']._replace(
    title='Colored MNIST, whose colours mislead', inputs='28x28x2', classes='2',
    page='https://arxiv.org/abs/1907.02893', downloads=(),
    flags=f'{_NATURAL} --num_clients=2',
    by_hand='download the files of mnist: moon-jax data get mnist')
_DOWNLOADABLE = [name for name, entry in ENTRIES.items() if entry.downloads]


def main() -> None:
  """Runs `get`, `check` or `list`."""
  file_command.start(_parser(), lambda arguments: arguments.run(arguments))


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      'moon-jax data', description='Downloads, checks and lists data sets.')
  commands = parser.add_subparsers(
      metavar='COMMAND', required=True, title='commands')
  get = commands.add_parser(
      'get', help='download a data set and check it',
      description='Downloads a data set and checks it. An interrupted download '
      'resumes.')
  get.add_argument('name', metavar='NAME', help='see moon-jax data list')
  get.add_argument('--data_dir', required=True, metavar='DIR',
                   help='directory to write to; created')
  get.add_argument('--mirror', default='', metavar='URL',
                   help='download the same files from URL/ instead; their '
                   'checksums are verified')
  get.set_defaults(run=_get)
  check = commands.add_parser(
      'check', help='verify the files of data sets and count examples',
      description='Verifies checksums, loads the data sets in a directory and '
      'counts their examples. The exit status is 1 if one is missing or '
      'damaged.')
  check.add_argument('--data_dir', metavar='DIR', default='',
                     help='the same as the argument DIR')
  check.add_argument('words', nargs='*', metavar='DIR [NAME]',
                     help='directory and data set; by default, all that are '
                     'in the directory')
  check.set_defaults(run=_check)
  commands.add_parser(
      'list', help='names, sizes, licenses and sources',
      description='Lists the data sets of --dataset.').set_defaults(run=_list)
  return parser


def _get(arguments: argparse.Namespace) -> int:
  name, entry = arguments.name, _downloadable(arguments.name)
  if entry.is_included:
    print(f'{entry.title} needs no download: it is part of an installed '
          'package.')
  else:
    has_license = not entry.license.startswith('no license')
    print(f'{entry.title}: {"license " * has_license}{entry.license}; '
          f'{entry.page}', flush=True)
    root = files.user_path(arguments.data_dir, 'data_dir')
    try:
      dataset = sources.load_dataset(name, str(root), may_download=False)
    except UserError:  # missing or damaged
      if _hides_downloads(name, entry, root):
        raise
      _download(entry, root, arguments.mirror)
      dataset = sources.load_dataset(name, str(root), may_download=False)
    print(f'{entry.title} is in {root}', *_describe(dataset), sep='\n')
  print('Next:', _train(name, entry, arguments.data_dir))
  return 0


def _downloadable(name: str) -> Entry:
  """Returns the description of a data set that can be downloaded."""
  if name not in ENTRIES:
    hint = spelling.remedy('dataset', name, list(ENTRIES))
    raise UserError('', f'NAME must be one of {", ".join(ENTRIES)}', name,
                    hint.replace('--dataset=', '') or 'Choose one of them')
  entry = ENTRIES[name]
  require(not entry.by_hand, '', 'NAME must have files that can be downloaded '
          'without you', entry.title, f'See {entry.page}: {entry.by_hand}')
  return entry


def _hides_downloads(name: str, entry: Entry, root: pathlib.Path) -> bool:
  """Returns whether `root` has files that are read instead of downloads.

  These are extracted files, or files in another directory.
  """
  root = root.absolute()
  path = (tiny_imagenet.find(root) if name == 'tiny_imagenet'
          else published.find(sources.PUBLISHED[name], root))
  targets = [file.path(root) for file in entry.downloads]
  if len(targets) == 1:  # an archive
    return path not in (None, *targets)
  return path is not None and any(
      target.parent != path
      or target.suffix == '.gz' and target.with_suffix('').exists()
      for target in targets)


def _download(entry: Entry, root: pathlib.Path, mirror: str) -> None:
  """Downloads the files of a data set that a directory lacks.

  `root` is created. `mirror` is the URL of a directory that holds the same
  files; '' downloads them from where they are published.
  """
  import requests

  paths = {file: file.path(root) for file in entry.downloads}
  try:
    for path in paths.values():
      path.parent.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError('data_dir', 'must be a writable directory', f'{root} '
                    f'({error.strerror})', 'Name another') from error
  for file, path in paths.items():
    url = f'{mirror.rstrip("/")}/{path.name}' if mirror else file.url
    try:
      published.fetch(url, file.md5, path.parent)
    except UserError as error:
      if not isinstance(error.__cause__, requests.RequestException):
        raise
      others = [other.url for other, path in paths.items()
                if other != file and not path.exists()]
      raise UserError(
          error.setting, error.requirement, error.got,
          '. The same for '.join([error.remedy, *others])) from error


def _describe(dataset: Dataset) -> Iterator[str]:
  """Yields lines about the sizes, classes and clients of a data set."""
  kind = ('images' if dataset.is_images else
          f'sequences of {dataset.num_tokens} tokens' if dataset.num_tokens
          else 'rows of features')
  shape = 'x'.join(map(str, dataset.train_inputs.shape[1:]))
  parts = {'training': dataset.train_labels, 'test': dataset.test_labels}
  yield ('  ' + ' and '.join(f'{len(y):,} {part}' for part, y in parts.items())
         + f' examples: {kind}, {shape}, {dataset.num_classes} classes')
  if dataset.task_name == 'classification':
    for part, labels in parts.items():
      counts = np.bincount(labels, minlength=dataset.num_classes)
      low, high = counts.argmin(), counts.argmax()
      yield (f'  {counts[low]:,} ({dataset.class_names[low]}) to '
             f'{counts[high]:,} ({dataset.class_names[high]}) {part} examples '
             'per class')
  else:
    yield (f'  task {dataset.task_name}: {dataset.train_labels.dtype} labels '
           f'{list(dataset.train_labels.shape)}')
  if dataset.train_clients is not None:
    sizes = np.bincount(dataset.train_clients)
    yield (f'  {len(sizes):,} natural clients with {sizes.min():,} to '
           f'{sizes.max():,} training examples, median {np.median(sizes):,.0f}')


def _train(name, entry, data_dir):
  """Returns a command that trains on the data set."""
  where = [] if entry.is_included else [f'--data_dir={data_dir}']
  return shlex.join(['moon-jax', 'train', f'--dataset={name}', *where,
                     *entry.flags.split()])


def _check(arguments: argparse.Namespace) -> int:
  from moon_jax.simulation import federation_checks  # imports JAX

  words = [arguments.data_dir] * bool(arguments.data_dir) + arguments.words
  if not words or len(words) > 2:
    raise UserError('', 'DIR and at most one NAME must be given',
                    ' '.join(words) or 'nothing', 'Run moon-jax data check DIR')
  data_dir, *names = str(files.user_path(words[0])), *words[1:]
  names = names or _find(data_dir)
  if not names and any(pathlib.Path(data_dir).glob('train/*.json')):
    raise UserError(
        '', 'NAME must be femnist or shakespeare for files of LEAF',
        f'none for {data_dir}', f'Run moon-jax data check {data_dir} NAME')
  if not names:
    by_hand = ', '.join(x for x, entry in ENTRIES.items() if entry.by_hand)
    print(f'{data_dir} holds none of {", ".join(_DOWNLOADABLE)}. Download '
          f'one: moon-jax data get NAME --data_dir={data_dir}. Or name what it '
          f'holds: moon-jax data check {data_dir} NAME, where NAME is '
          f'{by_hand} or MODULE:LOADER; or moon-jax data check FILE.npz')
    return 1
  status = 0
  for name in names:
    try:
      dataset = sources.load_dataset(name, data_dir, may_download=False)
      federation_checks.check_dataset(dataset, name, 0)
      state, lines = 'complete', [*_describe(dataset)]
    except UserError as error:
      state, lines, status = 'missing or damaged', [str(error)], 1
    print(f'{name} in {data_dir}: {state}', *lines, sep='\n', flush=True)
  return status


def _find(data_dir: str) -> list[str]:
  """Returns the names of the data sets that have files in a directory.

  `data_dir` is an existing directory, or an npz file.
  """
  root = pathlib.Path(data_dir)
  if root.suffix == '.npz' and root.is_file():
    return ['npz']
  require(root.is_dir(), '', 'DIR must be a directory or an npz file', data_dir,
          'Name one that exists')
  names = [name for name, data in sources.PUBLISHED.items()
           if published.find(data, root)]
  tiny = tiny_imagenet.find(root)
  if tiny and tiny.stem == tiny_imagenet.FOLDER:
    names.append('tiny_imagenet')
  if (root / 'x_train.npy').exists():
    names.append('npy')
  return names


def _list(_) -> None:
  print('Second lines: license; page of the data set.')
  print(f'{"name":19}{"training, test":17}{"inputs":15}{"classes":9}files')
  for name, entry in ENTRIES.items():
    files = ('included' if entry.is_included else 'by hand' if entry.by_hand
             else f'download, {entry.megabytes} MB')
    print(f'{name:19}{entry.examples:17}{entry.inputs:15}{entry.classes:9}'
          f'{files}\n  {entry.license}; {entry.page}')
  print('Other data: --dataset=csv, images, text, npz, npy, MODULE:LOADER or\n'
        'hf:NAME (docs/data.md).')


if __name__ == '__main__':
  main()
