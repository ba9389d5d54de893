"""Many small JPEG files as one array: decoded once, in parallel, then kept.

They are kept in one npy file with the sha256 of the pixels behind them. Its
name tells the names, sizes and times of the images, in order: where any of them
changes, they are decoded anew.
"""

import concurrent.futures
import hashlib
import io
import os
import pathlib

import numpy as np

from moon_jax.data.files import Tree
from moon_jax.errors import UserError

_CHUNK = 64  # images a thread decodes before it tells of its progress


def load(tree: Tree, names: list[str], size: int, title: str) -> np.ndarray:
  """The images `names` of `tree`, uint8 [N, size, size, 3]; grey ones in RGB.

  Args:
    tree: the files. What is kept lies next to it or, where that cannot be
      written, in the user's cache.
    names: of the images, in the order wanted.
    size: in pixels, of each.
    title: what the kept file's name begins with.

  Raises:
    UserError: naming the file that is no JPEG, is damaged or of another size.
  """
  import platformdirs

  shape = (len(names), size, size, 3)
  stamp = repr([(name, *tree.stamps[name]) for name in names])
  key = hashlib.sha256(stamp.encode('utf-8', 'replace')).hexdigest()[:16]
  paths = [pathlib.Path(directory) / f'{title}-{key}.npy' for directory in
           (tree.path.parent, platformdirs.user_cache_dir('moon_jax'))]
  for path in paths:
    if path.is_file():
      images = _kept(path, shape)
      if images is not None:
        return images
      print(f'{path} is damaged; decoding the images anew', flush=True)
  images = _decode(tree, names, shape, title)
  if not any(_keep(path, images) for path in paths):
    print(f'{paths[-1]} cannot be written: the images will be decoded again '
          'the next time', flush=True)
  return images


def _header(shape: tuple[int, ...]) -> bytes:
  """What an npy file of pixels begins with."""
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(
      header, {'descr': '|u1', 'fortran_order': False, 'shape': shape})
  return header.getvalue()


def _kept(path: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray | None:
  """The images in `path`, or None where it is not as `_keep` wrote it."""
  header = _header(shape)
  images = np.empty(shape, np.uint8)
  try:
    with open(path, 'rb') as file:
      is_whole = (file.read(len(header)) == header
                  and file.readinto(memoryview(images).cast('B'))
                  == images.size)
      digest = file.read()
  except OSError:
    return None
  return (images if is_whole and hashlib.sha256(images).digest() == digest
          else None)


def _keep(path: pathlib.Path, images: np.ndarray) -> bool:
  """Writes `path` whole or not at all, and tells which."""
  part = path.with_name(f'{path.name}.{os.getpid()}.part')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
      with open(part, 'wb') as file:
        file.write(_header(images.shape))
        file.write(memoryview(images).cast('B'))
        file.write(hashlib.sha256(images).digest())
      os.replace(part, path)
    finally:
      part.unlink(missing_ok=True)
  except OSError:
    return False
  return True


def _decode(tree: Tree, names: list[str], shape: tuple[int, ...],
            title: str) -> np.ndarray:
  import tqdm

  images = np.empty(shape, np.uint8)

  def fill(begin):
    chunk = range(begin, min(begin + _CHUNK, len(names)))
    for i in chunk:
      images[i] = _pixels(tree, names[i], shape[1])
    return len(chunk)

  # Threads do, since Pillow decodes outside of Python's lock.
  with concurrent.futures.ThreadPoolExecutor() as pool, tqdm.tqdm(
      total=len(names), desc=f'decoding {title}', unit=' images') as bar:
    for count in pool.map(fill, range(0, len(names), _CHUNK)):
      bar.update(count)
  return images


def _pixels(tree: Tree, name: str, size: int) -> np.ndarray:
  from PIL import Image

  path, blob = tree.read(name)
  try:
    image = Image.open(io.BytesIO(blob), formats=('JPEG',))
    if image.size == (size, size):
      return np.asarray(image.convert('RGB'))
  except Exception as error:  # its readers raise many kinds
    raise UserError(f'--data_dir: {path} is not a whole JPEG file '
                    f'({type(error).__name__}). {tree.remedy}') from error
  raise UserError(f'--data_dir: {path} is of {image.size[0]}x{image.size[1]} '
                  f'pixels where {size}x{size} are expected. {tree.remedy}')
