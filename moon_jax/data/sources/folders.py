"""Images in folders by class: --dataset=images --data_dir=DIR.

    DIR/CLASS/*.png                               classes
    DIR/CLIENT/CLASS/*.png                        classes of clients, or domains
    DIR/train/... DIR/test/...                    the same, already split

Images in DIR/valid are test images if there is no DIR/test, and training images
otherwise. Hidden files and folders, such as .ipynb_checkpoints, are not read.

Names of folders are the names of classes and clients, in sorted order.
"""

from collections.abc import Sequence
import concurrent.futures
import pathlib
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt
import numpy as np

from moon_jax.config.parts import checked, FromRun
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.data.sources.tables import test_rows
from moon_jax.errors import setting

_SUFFIXES = ('.png', '.jpg', '.jpeg', '.bmp', '.gif', '.pgm', '.ppm', '.webp',
             '.tif', '.tiff')
_SPLITS = {'train': 'train', 'training': 'train', 'test': 'test',
           'testing': 'test', 'valid': 'valid', 'validation': 'valid',
           'val': 'valid'}


@checked
def load(data_dir: FromRun[str] = '', size: Annotated[int, Ge(0)] = 0,
         test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2) -> Dataset:
  """Reads folders of images: one for each class, or for each client and class.

  Images have one channel if all are grayscale, else three.

  Args:
    size: side in pixels to which all images are resized (bilinear); with 0, all
      images must have the same size.
    test_fraction: fraction of the images of each client that are for testing,
      if there are no folders train and test.

  Raises:
    UserError: naming the file, if there are no such folders or an image cannot
      be read.
  """
  root = files.existing_directory('images', 'the folders', data_dir,
                                  'a folder of images for each class')
  check = arrays.Check(setting('dataset', 'images'))
  paths = [path for path in files.visible(root, '**/*')
           if path.suffix.lower() in _SUFFIXES and path.is_file()]
  check(paths, 'the directory must hold folders of images',
        f'{data_dir} without {", ".join(_SUFFIXES[:3])}',
        'Name another directory')
  parts, owners, labels = layout(check, root, paths)
  is_test = (parts == 'test' if any(parts)
             else test_rows(owners, None, test_fraction))
  names = np.unique(labels[~is_test])
  is_known = np.isin(labels, names)
  first = int(is_known.argmin())
  check(is_known.all(), 'folders must have only classes of training images',
        f'{str(labels[first])!r} in {paths[first]}',
        'Add training images of the class, or remove it')
  y = np.searchsorted(names, labels)
  x = decode(check, paths, size)
  loaded: dict[str, Any] = {'class_names': names}
  for part, rows in ('train', ~is_test), ('test', is_test):
    loaded |= {f'x_{part}': x[rows], f'y_{part}': y[rows]}
    if any(owners):
      loaded[f'client_{part}'] = owners[rows]
  print(f'{check.source}: {len(x):,} images of '
        f'{"x".join(map(str, x.shape[1:]))}, {len(names)} classes' + (
            f', {len(set(owners))} clients' * any(owners)), flush=True)
  return arrays.to_dataset(root.resolve().name, check.source, loaded)


def layout(check: arrays.Check, root: pathlib.Path,
           paths: Sequence[pathlib.Path]) -> tuple[np.ndarray, ...]:
  """Returns what the folders of N files mean, three arrays of strings [N].

  These are train or test, or '' if the files are to be split; the client, or ''
  if there are none; and the class.
  """
  places = [path.relative_to(root).parts[:-1] for path in paths]
  tops = {place[0]: _SPLITS.get(place[0].lower(), '')
          for place in places if place}
  # Classes may have the name train, too: of vehicles, for example.
  is_split = 'train' in tops.values() and (
      {*tops.values()} != {'train', ''} or any(place[1:] for place in places))
  others = [str(root / top) for top, part in tops.items() if not part]
  check(not (is_split and others), 'beside the folder train there must be only '
        'folders test and valid', ', '.join(others[:3]), 'Move or rename them')
  parts = [tops[place[0]] if is_split and place else '' for place in places]
  # Without test images, validation images are for testing.
  valid = 'train' if 'test' in parts else 'test'
  parts = [part.replace('valid', valid) for part in parts]
  check(not is_split or 'test' in parts, 'there must be test examples',
        f'{root}/train only', f'Add {root}/test, or give '
        f'{setting("data_dir", f"{root}/train")} to split its files')
  places = [place[is_split:] for place in places]
  depth = len(places[0])
  for path, place in zip(paths, places):
    check(len(place) == depth and depth in (1, 2), 'files must all be in '
          'DIR/CLASS/, or all in DIR/CLIENT/CLASS/', path,
          'Move it, or name the directory that holds the folders')
  return (np.array(parts), np.array([place[0] * (depth == 2)
                                     for place in places]),
          np.array([place[-1] for place in places]))


def decode(check: arrays.Check, paths: Sequence[pathlib.Path],
           size: int = 0) -> np.ndarray:
  """Returns images as uint8 [N, H, W, C]; `load` describes `size`."""
  from PIL import Image

  def opened(path):
    try:
      return Image.open(path)
    except Exception as error:  # Pillow raises many types
      return check(False, 'images must be complete', f'{path} '
                   f'({type(error).__name__})', 'Remove it, or copy it again')

  def head(path):
    with opened(path) as image:
      check(image.mode[0] not in 'IF', 'images must have pixels of 8 bits',
            f'mode {image.mode} in {path}', 'Convert it')
      return image.mode in ('1', 'L'), image.size

  def pixels(path):
    with opened(path) as image:
      try:
        image = image.convert(mode)
      except Exception as error:
        check(False, 'images must be complete', f'{path} '
              f'({type(error).__name__})', 'Remove it, or copy it again')
      if size and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
      return np.asarray(image)

  # Threads run in parallel: Pillow releases the GIL.
  with (concurrent.futures.ThreadPoolExecutor() as pool, files.show_progress(
      f'decoding {len(paths):,} images', len(paths), 'images') as advance):
    heads = list(pool.map(head, paths))
    mode = 'L' if all(is_gray for is_gray, _ in heads) else 'RGB'
    for path, (_, shape) in zip(paths, heads):
      check(size or shape == heads[0][1], 'images must have equal sizes',
            f'{heads[0][1]} in {paths[0]} and {shape} in {path}',
            'Give size=PIXELS to resize all')
    w, h = (size, size) if size else heads[0][1]
    images = np.empty((len(paths), h, w, 1 if mode == 'L' else 3), np.uint8)
    for i, x in enumerate(pool.map(pixels, paths)):
      images[i] = x.reshape(images.shape[1:])
      advance(1)
  return images
