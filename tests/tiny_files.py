"""A synthetic Tiny-ImageNet of 18 images, for the tests of its loader."""

import io
import os
import re
import shutil
import zipfile

import numpy as np
from PIL import Image
import platformdirs

from moon_jax.data.io import download
from moon_jax.data.sources import tiny_imagenet

WNIDS = ('n02', 'n10', 'n01')  # unsorted, as in wnids.txt
FOLDER = 'tiny-imagenet-200'


def jpeg(seed, size=(64, 64), mode='RGB', plain=False):
  """Returns a JPEG of noise, a long file, or of one color, a short file."""
  random = np.random.RandomState(seed)
  shape = size[::-1] + ((3,) if mode == 'RGB' else ())
  pixels = random.randint(0, 256, shape, np.uint8)
  if plain:
    pixels[:] = pixels[0, 0]
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, 'JPEG')
  return file.getvalue()


def synthetic_files():
  """Returns files in the published layout: 3 classes, 12 + 6 images.

  File names sort differently from image numbers, the fourth image of each class
  is grayscale, and the test images are not sorted by class.
  """
  files = {'wnids.txt': '\n'.join(WNIDS).encode(), 'words.txt': (
      b'n01\tgoldfish, Carassius auratus\nn77\tother\nn02\tbullfrog\n')}
  for k, wnid in enumerate(WNIDS):
    for i, j in enumerate((8, 9, 10, 11)):
      files[f'train/{wnid}/images/{wnid}_{j}.JPEG'] = jpeg(
          10 * k + i, mode='L' if i == 3 else 'RGB')
    files[f'train/{wnid}/{wnid}_boxes.txt'] = b'n01_8.JPEG\t0\t0\t9\t9\n'
  lines = []
  for i in range(6):
    files[f'val/images/val_{i + 6}.JPEG'] = jpeg(100 + i)
    lines.append(f'val_{i + 6}.JPEG\t{WNIDS[(i + 1) % 3]}\t0\t0\t9\t9\n')
  files['val/val_annotations.txt'] = ''.join(lines).encode()
  files['test/images/test_0.JPEG'] = b'not read'
  return files


FILES = synthetic_files()
IMAGE = 'train/n10/images/n10_9.JPEG'


def use(monkeypatch, cache):
  """Sets the image counts and the cache directory, and disables downloads."""
  for name, value in (('NUM_CLASSES', 3), ('TRAIN_PER_CLASS', 4),
                      ('NUM_TEST', 6)):
    monkeypatch.setattr(tiny_imagenet, name, value)
  monkeypatch.setattr(platformdirs, 'user_cache_dir', lambda name: str(cache))

  def fetch(*args):
    raise AssertionError('tried to download')
  monkeypatch.setattr(download, 'fetch', fetch)


def write(root, files=FILES):
  for name, blob in files.items():
    path = root / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)
  return root / FOLDER


def write_zip(root, files=FILES, compression=zipfile.ZIP_STORED):
  path = root / f'{FOLDER}.zip'
  with zipfile.ZipFile(path, 'w', compression) as archive:
    for name, blob in files.items():
      archive.writestr(f'{FOLDER}/{name}', blob)
  return path


def image_folder(directory):
  """Returns images and classes as torchvision's ImageFolder loads them."""
  classes = sorted(e.name for e in os.scandir(directory) if e.is_dir())
  images, labels = [], []
  for k, name in enumerate(classes):
    for root, _, files in sorted(os.walk(os.path.join(directory, name))):
      for file in sorted(files):
        if file.lower().endswith(('.jpg', '.jpeg', '.png')):
          with open(os.path.join(root, file), 'rb') as opened:
            images.append(np.asarray(Image.open(opened).convert('RGB')))
          labels.append(k)
  return np.stack(images), labels


def by_class(folder, subdirectory=''):
  """Moves the test images into one directory per class, as many scripts do."""
  lines = (folder / 'val/val_annotations.txt').read_text().splitlines()
  for file, wnid in (line.split('\t')[:2] for line in lines):
    target = folder / 'val' / wnid / subdirectory
    target.mkdir(parents=True, exist_ok=True)
    shutil.move(folder / 'val/images' / file, target / file)
  (folder / 'val/images').rmdir()


def assert_same(dataset, other):
  for name in ('train_inputs', 'train_labels', 'test_inputs', 'test_labels'):
    np.testing.assert_array_equal(getattr(dataset, name), getattr(other, name))


def cached_files(directory):
  return sorted(directory.glob('tiny_imagenet-*'))


def published_names(files=FILES):
  """Returns the same files, numbered from 0 like the published ones."""
  new = {}
  for name, blob in files.items():
    part, number = re.fullmatch(r'(.*?)(\d*)(?:\.JPEG)?', name).groups()
    if name.startswith('train') and number:
      name = f'{part}{int(number) - 8}.JPEG'
    elif name.startswith('val/images'):
      name = f'{part}{int(number) - 6}.JPEG'
    elif name == 'val/val_annotations.txt':
      blob = re.sub(rb'val_(\d+)', lambda match: b'val_%d' % (
          int(match[1]) - 6), blob)
    new[name] = blob
  return new
