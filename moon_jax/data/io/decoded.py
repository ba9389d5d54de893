"""Many small JPEG files as one array: decoded once, in parallel, then kept.

They are kept in one npy file (`moon_jax.data.io.cache`) next to the files or,
where that cannot be written, in the user's cache; its path and size are
printed. Its name is a hash of the names and sizes of the images, in order.
Where their times differ from those of the files that were decoded (in a copied
or newly unpacked folder, or the zip archive instead of a folder), the files
are read and compared by sha256, which takes seconds; only where one has
changed are the images decoded again. So a copy needs no second kept file, and
a changed image of the same size is noticed, unless its time is the same, too.
When a file is kept, those kept before it in the same place are removed.
"""

import concurrent.futures
import hashlib
import io
import pathlib

import numpy as np

from moon_jax.data.io import cache
from moon_jax.data.io import progress
from moon_jax.data.io.files import Tree
from moon_jax.errors import UserError

_CHUNK = 64  # images a thread works on before it reports its progress


def load(tree: Tree, names: list[str], size: int, title: str,
         prefix: str) -> np.ndarray:
  """The images `names` of `tree`, uint8 [N, size, size, 3]; grey ones in RGB.

  Args:
    tree: the files.
    names: of the images, in the order wanted.
    size: in pixels, of each.
    title: of the data set, for messages.
    prefix: what the kept file's name begins with.

  Raises:
    UserError: naming the file that is no JPEG, is damaged or of another size.
  """
  import platformdirs

  shape = (len(names), size, size, 3)
  key = _hash([(name, tree.stamps[name][0]) for name in names]).hex()[:16]
  stamp = _hash([(name, *tree.stamps[name]) for name in names])
  paths = [pathlib.Path(directory) / f'{prefix}-{key}.npy' for directory in
           (tree.path.parent, platformdirs.user_cache_dir('moon_jax'))]
  content = b''
  for path in paths:
    if not path.is_file():
      continue
    found = cache.read(path, shape)
    if found is None:
      print(f'{path} is damaged; decoding the images again', flush=True)
      continue
    if found.stamp == stamp:
      return found.images
    content = content or _content(tree, names, title)
    if found.content == content:
      cache.restamp(path, stamp)
      return found.images
    print(f'{path} was decoded from other files; decoding the images again',
          flush=True)
  images, content = _decode(tree, names, shape, title)
  for path in paths:
    if cache.write(path, cache.Kept(images, content, stamp)):
      removed = cache.remove_others(path, prefix, shape)
      print(f'wrote the decoded images of {title} to {path} '
            f'({path.stat().st_size / 1e6:,.1f} MB), where the next run reads '
            'them' + (f'; removed {", ".join(map(str, removed))}, which it '
                      'replaces' if removed else ''), flush=True)
      return images
  print(f'{paths[-1]} cannot be written: the next run will decode the '
        'images again', flush=True)
  return images


def _hash(value) -> bytes:
  return hashlib.sha256(repr(value).encode('utf-8', 'replace')).digest()


def _decode(tree: Tree, names: list[str], shape: tuple[int, ...],
            title: str) -> tuple[np.ndarray, bytes]:
  """The images, and the hash of their files."""
  images = np.empty(shape, np.uint8)
  digests = np.empty((len(names), 32), np.uint8)

  def fill(i):
    path, blob = tree.read(names[i])
    digests[i] = _digest(blob)
    images[i] = _pixels(path, blob, shape[1], tree.remedy)

  _for_each(fill, len(names),
            f'decoding {len(names):,} images of {title}')
  return images, hashlib.sha256(digests).digest()


def _content(tree: Tree, names: list[str], title: str) -> bytes:
  """The hash of the files, as `_decode` returns it."""
  digests = np.empty((len(names), 32), np.uint8)

  def fill(i):
    digests[i] = _digest(tree.read(names[i])[1])

  _for_each(fill, len(names), f'comparing {len(names):,} images of {title}, '
            'whose times changed')
  return hashlib.sha256(digests).digest()


def _digest(blob: bytes) -> np.ndarray:
  return np.frombuffer(hashlib.sha256(blob).digest(), np.uint8)


def _for_each(fill, count: int, title: str) -> None:
  """Calls fill(i) for each i below `count`, and shows how far it is."""
  def fill_chunk(begin):
    chunk = range(begin, min(begin + _CHUNK, count))
    for i in chunk:
      fill(i)
    return len(chunk)

  # Threads do: Pillow decodes and hashlib hashes outside of Python's lock.
  with (concurrent.futures.ThreadPoolExecutor() as pool,
        progress.shown(title, count, 'images') as advance):
    for done in pool.map(fill_chunk, range(0, count, _CHUNK)):
      advance(done)


def _pixels(path: str, blob: bytes, size: int, remedy: str) -> np.ndarray:
  from PIL import Image

  try:
    image = Image.open(io.BytesIO(blob), formats=('JPEG',))
    if image.size == (size, size):
      return np.asarray(image.convert('RGB'))
  except Exception as error:  # its readers raise many kinds
    raise UserError(f'--data_dir: {path} is not a whole JPEG file '
                    f'({type(error).__name__}). {remedy}') from error
  raise UserError(f'--data_dir: {path} is of {image.size[0]}x{image.size[1]} '
                  f'pixels where {size}x{size} are expected. {remedy}')
