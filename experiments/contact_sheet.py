"""Draws what augmentation makes of each data set's images.

    python -m experiments.contact_sheet SHEET.png
    python -m experiments.contact_sheet SHEET.png --datasets=cifar10 \\
        --data_dir=DIRECTORY

Without a directory photographs that scikit-learn ships, cut to the data set's
size, are in the place of its images, and the sheet says so.
"""

import pathlib
import sys

from absl import app
from absl import flags
from absl import logging
import numpy as np

from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.report import contact_sheet

_DATA_DIR = flags.DEFINE_string('data_dir', '', 'Where data sets are.')
_DATASETS = flags.DEFINE_list(
    'datasets', 'digits,cifar10,cifar100,tiny_imagenet', 'Data sets of images.')

_COUNT = 10  # images of each
_SIZE = {'tiny_imagenet': 64}  # pixels a side of photographs' pieces; else 32
_AUGMENTATION = {'cifar10': 'reflect_crop_flip',
                 'cifar100': 'zero_crop_flip_rotate'}


def panel(name: str, data_dir: str) -> contact_sheet.Panel:
  """Of the data set itself, where it is at hand."""
  if data_dir or name == 'digits':
    dataset = sources.load(name, data_dir)
    title, images = name, dataset.train_inputs[:_COUNT]
    augmentation = dataset.augmentation
  else:
    title = f'photographs in the place of {name}'
    images = photographs(_SIZE.get(name, 32))
    augmentation = _AUGMENTATION.get(name, 'none')
  return contact_sheet.Panel(f'{title}: {augmentation}', images, augmentation)


def photographs(size: int) -> np.ndarray:
  """Pieces of scikit-learn's photographs, uint8 [B, size, size, 3]."""
  from sklearn import datasets

  zoom = 128 // size  # pixels of a photograph that become one
  pieces = []
  for photograph in datasets.load_sample_images().images:
    h, w, _ = photograph.shape
    small = photograph[:h // zoom * zoom, :w // zoom * zoom].reshape(
        h // zoom, zoom, w // zoom, zoom, 3).mean((1, 3))
    pieces += [small[i:i + size, j:j + size]
               for i in range(0, small.shape[0] - size + 1, size)
               for j in range(0, small.shape[1] - size + 1, size)]
  step = len(pieces) // _COUNT or 1
  return np.round(np.stack(pieces[::step][:_COUNT])).astype(np.uint8)


def main(argv: list[str]) -> None:
  if len(argv) != 2:
    raise app.UsageError('Name the PNG to write.')
  logging.set_verbosity(logging.WARNING)
  try:
    contact_sheet.draw(
        [panel(name, _DATA_DIR.value) for name in _DATASETS.value],
        pathlib.Path(argv[1]))
  except (UserError, OSError) as error:
    print(f'contact_sheet: {error}', file=sys.stderr)
    sys.exit(2)


if __name__ == '__main__':
  app.run(main)
