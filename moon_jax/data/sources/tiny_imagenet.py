"""Tiny-ImageNet: 200 classes of ImageNet in 64x64 pixels (Stanford, CS231n).

http://cs231n.stanford.edu/tiny-imagenet-200.zip. The validation set is used as
the test set, as in the released code of MOON, because the test set has no
labels.

    train/WNID/images/*.JPEG         or train/WNID/*.JPEG
    val/images/*.JPEG                with classes in val/val_annotations.txt,
                                     or val/WNID/*.JPEG, or val/WNID/images/...
    words.txt                        class name of each WNID; optional
    wnids.txt                        the WNIDs, for error messages; optional

Images are decoded by the first run and cached in one file of 1.35 GB next to
the folder or archive (`moon_jax.data.io.image_folder`). Its path is printed.

Examples are sorted by class and then by file name, as by torchvision's
ImageFolder. The published partitions depend on this order.
"""

from collections.abc import Collection
import pathlib
import posixpath

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import download
from moon_jax.data.io import files
from moon_jax.data.io import image_folder
from moon_jax.data.io.image_folder import FileTree
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
                  'again to read or download the archive')
_ARCHIVE_REMEDY = ('Remove it and run again to download it, or copy the '
                   f'archive from {URL} there')


def load(data_dir: str, may_download: bool = True) -> Dataset:
  """Reads Tiny-ImageNet from `data_dir`, or downloads it into that directory.

  Searches for, in this order: the folder tiny-imagenet-200/ in `data_dir`, the
  same folder at `data_dir`, and tiny-imagenet-200.zip in `data_dir`, which is
  not unpacked. Images are decoded by the first run and cached in a file; its
  path and size are printed.

  Raises:
    UserError: if files are missing or damaged and cannot be downloaded.
  """
  if data_dir == 'tfds':
    raise UserError('--data_dir=tfds does not support --dataset=tiny_imagenet; '
                    'give --data_dir=DIRECTORY to read or download it')
  root = files.existing_directory(
      'tiny_imagenet', _TITLE, data_dir, f'{_FOLDER}/ or {_FOLDER}.zip, or an '
      'empty one to download into', True).absolute()
  tree = _tree(root, may_download)
  train = _train(tree)
  wnids = sorted(train)
  test = _test(tree, set(wnids))
  train_names = [name for wnid in wnids for name in train[wnid]]
  images = image_folder.load(
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
      # From the released code of MOON.
      mean=(.5,) * 3,
      std=(.5,) * 3,
      augmentation='none',
  )


def _tree(root: pathlib.Path, may_download: bool) -> FileTree:
  folder = root / _FOLDER
  if not folder.is_dir() and (
      root.name == _FOLDER or (root / 'train').is_dir()):
    folder = root
  if folder.is_dir():
    return image_folder.directory_tree(
        folder, ('train', 'val', 'words.txt', 'wnids.txt'), _FOLDER_REMEDY)
  archive = root / f'{_FOLDER}.zip'
  if not archive.exists():
    if not may_download:
      raise UserError(
          f'--data_dir={root} must hold {_FOLDER}/ or {_FOLDER}.zip; got none '
          'of them. Download it: moon-jax data get tiny_imagenet '
          f'--data_dir={root}')
    print(f'{_TITLE} is not in {root} (searched for {_FOLDER}/ and '
          f'{_FOLDER}.zip); downloading {URL}', flush=True)
    archive = download.fetch(URL, MD5, root)
  return image_folder.zip_tree(archive, _FOLDER, _ARCHIVE_REMEDY)


def _by_class(tree: FileTree, part: str) -> dict[str, list[str]]:
  """Returns the images in PART/WNID/ and PART/WNID/images/ by WNID."""
  images = {}
  for name in tree.stamps:
    match name.split('/'):
      case [top, wnid, file] | [top, wnid, 'images', file] if (
          top == part and file.lower().endswith('.jpeg')
          and not file.startswith('.')):  # hidden files of macOS
        images.setdefault(wnid, []).append(name)
  return images


def _train(tree: FileTree) -> dict[str, list[str]]:
  """Returns the sorted names of the training images of each class.

  Raises:
    UserError: if images are missing, as after interrupted unpacking.
  """
  images = _by_class(tree, 'train')
  incomplete = sorted(wnid for wnid, names in images.items()
                      if len(names) != TRAIN_PER_CLASS)
  if incomplete or len(images) != NUM_CLASSES:
    wnids = _wnids(tree)
    missing, unknown = sorted(wnids - set(images)), sorted(set(images) - wnids)
    reason = f'got {len(images)} classes'
    if missing:
      reason += f'; missing: {_first(missing)}'
    elif wnids and unknown:
      reason += f'; not in wnids.txt: {_first(unknown)}'
    if incomplete:
      wnid = incomplete[0]
      reason += f'; {wnid} has {len(images[wnid])} images' + _difference(
          images[wnid], f'{wnid}_', TRAIN_PER_CLASS)
    if incomplete[1:]:
      reason += f'; other incomplete classes: {len(incomplete) - 1}'
    raise UserError(
        f'--data_dir: {tree.path} must hold train/ with {NUM_CLASSES} classes '
        f'of {TRAIN_PER_CLASS} images each; {reason}. {tree.remedy}')
  return {wnid: sorted(names, key=posixpath.split)
          for wnid, names in images.items()}


def _wnids(tree: FileTree) -> set[str]:
  """Returns the WNIDs in wnids.txt, or an empty set if the count is wrong."""
  if 'wnids.txt' not in tree.stamps:
    return set()
  wnids = set(tree.read('wnids.txt')[1].decode('utf-8', 'replace').split())
  return wnids if len(wnids) == NUM_CLASSES else set()


def _difference(names: list[str], prefix: str, count: int) -> str:
  """Returns a message about missing or additional files, '' if there are both.

  Published files are PREFIX0.JPEG, PREFIX1.JPEG and so on.
  """
  published = {f'{prefix}{i}.JPEG' for i in range(count)}
  actual = {posixpath.basename(name) for name in names}
  if actual < published:
    return f'; missing: {_first(published - actual)}'
  if published < actual:
    return f'; not published: {_first(actual - published)}'
  return ''


def _first(names: Collection[str]) -> str:
  """Returns the first three names and the number of the others."""
  first = sorted(names, key=lambda name: (len(name), name))[:3]
  rest = len(names) - len(first)
  return ', '.join(first) + (f' and {rest:,} more' if rest else '')


def _test(tree: FileTree, wnids: set[str]) -> list[tuple[str, str]]:
  """Returns (WNID, name) of the test images, sorted by class and file name.

  Raises:
    UserError: if images are missing or their classes are unknown.
  """
  by_class = _by_class(tree, 'val')
  if 'images' in by_class:  # the published layout
    images = {name for name in by_class['images'] if name.count('/') == 2}
    pairs = _annotated(tree, images, wnids)
    unlabeled = images - {name for _, name in pairs}
    reason = (f'; {len(unlabeled):,} of {len(images):,} images have no line in '
              'val/val_annotations.txt: '
              + _first(set(map(posixpath.basename, unlabeled))) if unlabeled
              else _difference(list(images), 'val_', NUM_TEST))
  else:
    unknown = sorted(set(by_class) - wnids)
    if unknown:
      raise UserError(f'--data_dir: classes in val/ must be in train/, got '
                      f'{tree.path}/val/{unknown[0]}/. {tree.remedy}')
    pairs = [(wnid, name) for wnid, names in by_class.items() for name in names]
    reason = _difference([name for _, name in pairs], 'val_', NUM_TEST)
  if len(pairs) != NUM_TEST:
    raise UserError(f'--data_dir: {tree.path} must hold val/ with {NUM_TEST:,} '
                    f'images and their classes; got {len(pairs):,}{reason}. '
                    f'{tree.remedy}')
  return sorted(pairs, key=lambda pair: (
      pair[0], posixpath.basename(pair[1])))


def _annotated(tree: FileTree, names: set[str],
               wnids: set[str]) -> list[tuple[str, str]]:
  """Returns the (WNID, name) pairs of val/val_annotations.txt.

  Each line holds FILE, WNID and a bounding box, tab-separated. FILE must be
  among `names`, so no line can refer to a file outside of the folder.
  """
  if 'val/val_annotations.txt' not in tree.stamps:
    raise UserError(f'--data_dir: {tree.path} lacks val/val_annotations.txt, '
                    f'the classes of val/images/. {tree.remedy}')
  path, blob = tree.read('val/val_annotations.txt')
  pairs = {}
  for number, line in enumerate(
      blob.decode('utf-8', 'replace').split('\n'), 1):
    if not line.strip():
      continue
    file, wnid = (line.strip('\r').split('\t') + [''])[:2]
    name = f'val/images/{file}'
    if name not in names or wnid not in wnids or name in pairs:
      reason = ('no such image in val/images/' if name not in names else
                'duplicate image' if name in pairs else
                'no such class in train/')
      raise UserError(f'--data_dir: {path}, line {number}: {reason}: '
                      f'{line[:60]!r}. {tree.remedy}')
    pairs[name] = wnid
  return [(wnid, name) for name, wnid in pairs.items()]


def _class_names(tree: FileTree, wnids: list[str]) -> tuple[str, ...]:
  """Returns the first name of each class in words.txt, or else its WNID."""
  if 'words.txt' not in tree.stamps:
    return tuple(wnids)
  _, blob = tree.read('words.txt')
  words = dict(line.split('\t', 1) for line in
               blob.decode('utf-8', 'replace').splitlines() if '\t' in line)
  return tuple(words.get(wnid, wnid).split(',')[0].strip() for wnid in wnids)
