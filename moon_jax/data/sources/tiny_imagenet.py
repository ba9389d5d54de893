"""Tiny-ImageNet: 200 classes of ImageNet in 64x64 pixels (Stanford, CS231n).

http://cs231n.stanford.edu/tiny-imagenet-200.zip. Its validation part is for
testing, as in the code released with MOON; its test part has no labels.

    train/WNID/images/*.JPEG         or train/WNID/*.JPEG
    val/images/*.JPEG                named in val/val_annotations.txt,
                                     or val/WNID/*.JPEG, or val/WNID/images/...
    words.txt                        what a WNID means; may be missing
    wnids.txt                        the classes, for messages; may be missing

Images are decoded at the first time only and kept in one file of 1.35 GB next
to the folder or archive (`moon_jax.data.io.decoded`), whose path is printed.

Examples are in order of class and then of file name, as in ImageFolder of
torchvision, on which the published partitions rest.
"""

from collections.abc import Collection
import pathlib
import posixpath

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import decoded
from moon_jax.data.io import download
from moon_jax.data.io import files
from moon_jax.data.io.files import Tree
from moon_jax.errors import UserError

URL = 'http://cs231n.stanford.edu/tiny-imagenet-200.zip'
MD5 = '90528d7ca1a48142e341f4ef8d21d0de'
NUM_CLASSES = 200
TRAIN_PER_CLASS = 500
NUM_TEST = 10_000

_TITLE = 'Tiny-ImageNet'
_FOLDER = 'tiny-imagenet-200'
_SIZE = 64
_FOLDER_REMEDY = (f'Unpack {_FOLDER}.zip again, or remove the folder and run '
                  'again: the archive is then read as it is, or downloaded')
_ARCHIVE_REMEDY = (f'Remove it and run again to download it, or put the '
                   f'archive from {URL} there')


def load(data_dir: str) -> Dataset:
  """Reads Tiny-ImageNet from `data_dir`, or downloads it there.

  Looked for, in this order: the folder tiny-imagenet-200/ in `data_dir`,
  `data_dir` as this folder itself, and tiny-imagenet-200.zip, which is read as
  it is. Images are decoded at the first time only and kept in a file, whose
  path and size are printed.

  Raises:
    UserError: see `moon_jax.data.sources.load`.
  """
  if data_dir == 'tfds':
    raise UserError('--data_dir=tfds has no --dataset=tiny_imagenet; give '
                    '--data_dir=DIRECTORY to read or download it')
  root = files.directory_of(
      'tiny_imagenet', _TITLE, data_dir, f'{_FOLDER}/ or {_FOLDER}.zip, or an '
      'empty one to download into', True).absolute()
  tree = _tree(root)
  train = _train(tree)
  wnids = sorted(train)
  test = _test(tree, set(wnids))
  train_names = [name for wnid in wnids for name in train[wnid]]
  images = decoded.load(
      tree, train_names + [name for _, name in test], _SIZE, _TITLE,
      'tiny_imagenet')
  class_of = {wnid: k for k, wnid in enumerate(wnids)}
  return Dataset(
      name='tiny_imagenet',
      train_inputs=images[:len(train_names)],
      train_labels=np.repeat(np.arange(len(wnids), dtype=np.int32),
                             [len(train[wnid]) for wnid in wnids]),
      test_inputs=images[len(train_names):],
      test_labels=np.array([class_of[wnid] for wnid, _ in test], np.int32),
      class_names=_class_names(tree, wnids),
      # As in the code released with MOON.
      mean=(.5,) * 3,
      std=(.5,) * 3,
      augmentation='none',
  )


def _tree(root: pathlib.Path) -> Tree:
  folder = root / _FOLDER
  if not folder.is_dir() and (
      root.name == _FOLDER or (root / 'train').is_dir()):
    folder = root
  if folder.is_dir():
    return files.tree_of_directory(
        folder, ('train', 'val', 'words.txt', 'wnids.txt'), _FOLDER_REMEDY)
  archive = root / f'{_FOLDER}.zip'
  if not archive.exists():
    print(f'{_TITLE} is not in {root} (looked for {_FOLDER}/ and '
          f'{_FOLDER}.zip); downloading {URL}', flush=True)
    archive = download.fetch(URL, MD5, root)
  return files.tree_of_zip(archive, _FOLDER, _ARCHIVE_REMEDY)


def _by_class(tree: Tree, part: str) -> dict[str, list[str]]:
  """The names of the images in PART/WNID/ and PART/WNID/images/, by WNID."""
  found = {}
  for name in tree.stamps:
    match name.split('/'):
      case [top, wnid, file] | [top, wnid, 'images', file] if (
          top == part and file.lower().endswith('.jpeg')
          and not file.startswith('.')):  # as those that macOS leaves
        found.setdefault(wnid, []).append(name)
  return found


def _train(tree: Tree) -> dict[str, list[str]]:
  """The names of each class's training images, in order.

  Raises:
    UserError: where not all are there, which a broken unpacking leaves.
  """
  found = _by_class(tree, 'train')
  partial = sorted(wnid for wnid, names in found.items()
                   if len(names) != TRAIN_PER_CLASS)
  if partial or len(found) != NUM_CLASSES:
    wnids = _wnids(tree)
    absent, unknown = sorted(wnids - set(found)), sorted(set(found) - wnids)
    why = f'got {len(found)} classes'
    if absent:
      why += f'; missing: {_few(absent)}'
    elif wnids and unknown:
      why += f'; not in wnids.txt: {_few(unknown)}'
    if partial:
      wnid = partial[0]
      why += f'; {wnid} has {len(found[wnid])} images' + _difference(
          found[wnid], f'{wnid}_', TRAIN_PER_CLASS)
    if partial[1:]:
      why += f'; other classes that are not whole: {len(partial) - 1}'
    raise UserError(
        f'--data_dir: {tree.path} must hold train/ of {NUM_CLASSES} classes, '
        f'each of {TRAIN_PER_CLASS} images; {why}. {tree.remedy}')
  return {wnid: sorted(names, key=posixpath.split)
          for wnid, names in found.items()}


def _wnids(tree: Tree) -> set[str]:
  """The classes in wnids.txt; none where it does not name as many as needed."""
  if 'wnids.txt' not in tree.stamps:
    return set()
  wnids = set(tree.read('wnids.txt')[1].decode('utf-8', 'replace').split())
  return wnids if len(wnids) == NUM_CLASSES else set()


def _difference(names: list[str], prefix: str, count: int) -> str:
  """Which files are missing or too many, as messages continue; '' if unknown.

  Published files are PREFIX0.JPEG, PREFIX1.JPEG and so on.
  """
  published = {f'{prefix}{i}.JPEG' for i in range(count)}
  found = {posixpath.basename(name) for name in names}
  if found < published:
    return f'; missing: {_few(published - found)}'
  if published < found:
    return f'; not published: {_few(found - published)}'
  return ''


def _few(names: Collection[str]) -> str:
  """The first three names, and the number of the rest."""
  first = sorted(names, key=lambda name: (len(name), name))[:3]
  rest = len(names) - len(first)
  return ', '.join(first) + (f' and {rest:,} more' if rest else '')


def _test(tree: Tree, wnids: set[str]) -> list[tuple[str, str]]:
  """(WNID, name) of the test images by class and file, in either layout.

  Raises:
    UserError: where not all are there, or their classes are unknown.
  """
  found = _by_class(tree, 'val')
  if 'images' in found:  # as published
    images = {name for name in found['images'] if name.count('/') == 2}
    pairs = _annotated(tree, images, wnids)
    unnamed = images - {name for _, name in pairs}
    why = (f'; {len(unnamed):,} of {len(images):,} images have no line in '
           'val/val_annotations.txt: '
           + _few(set(map(posixpath.basename, unnamed))) if unnamed else
           _difference(list(images), 'val_', NUM_TEST))
  else:
    unknown = sorted(set(found) - wnids)
    if unknown:
      raise UserError(f'--data_dir: {tree.path} has val/{unknown[0]}/ and no '
                      f'such class in train/. {tree.remedy}')
    pairs = [(wnid, name) for wnid, names in found.items() for name in names]
    why = _difference([name for _, name in pairs], 'val_', NUM_TEST)
  if len(pairs) != NUM_TEST:
    raise UserError(f'--data_dir: {tree.path} must hold val/ of {NUM_TEST:,} '
                    f'images, each with its class; got {len(pairs):,}{why}. '
                    f'{tree.remedy}')
  return sorted(pairs, key=lambda pair: (
      pair[0], posixpath.basename(pair[1])))


def _annotated(tree: Tree, names: set[str],
               wnids: set[str]) -> list[tuple[str, str]]:
  """The pairs that val_annotations.txt makes: FILE, tab, WNID, tab, a box.

  A file is looked up in what there is, so that no line leads out of the folder.
  """
  if 'val/val_annotations.txt' not in tree.stamps:
    raise UserError(f'--data_dir: {tree.path} lacks val/val_annotations.txt, '
                    f'which names the classes of val/images/. {tree.remedy}')
  path, blob = tree.read('val/val_annotations.txt')
  pairs = {}
  for number, line in enumerate(
      blob.decode('utf-8', 'replace').split('\n'), 1):
    if not line.strip():
      continue
    file, wnid = (line.strip('\r').split('\t') + [''])[:2]
    name = f'val/images/{file}'
    if name not in names or wnid not in wnids or name in pairs:
      why = ('no image in val/images/' if name not in names else
             'named twice' if name in pairs else 'of no class in train/')
      raise UserError(f'--data_dir: {path}, line {number}: {line[:60]!r} is '
                      f'{why}. {tree.remedy}')
    pairs[name] = wnid
  return [(wnid, name) for name, wnid in pairs.items()]


def _class_names(tree: Tree, wnids: list[str]) -> tuple[str, ...]:
  """The first name of each class in words.txt (WNID, tab, names), or WNIDs."""
  if 'words.txt' not in tree.stamps:
    return tuple(wnids)
  _, blob = tree.read('words.txt')
  words = dict(line.split('\t', 1) for line in
               blob.decode('utf-8', 'replace').splitlines() if '\t' in line)
  return tuple(words.get(wnid, wnid).split(',')[0].strip() for wnid in wnids)
