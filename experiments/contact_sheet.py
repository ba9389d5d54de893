"""Draws images of each data set next to augmented copies.

    python -m experiments.contact_sheet SHEET.png
    python -m experiments.contact_sheet SHEET.png --datasets=cifar10 \\
        --data_dir=DIRECTORY

Without --data_dir the sheet shows crops of photographs that scikit-learn ships,
of the same size as the data set's images. The titles then start with
"photographs instead of".
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

_DATA_DIR = flags.DEFINE_string(
    'data_dir', '', 'Directory that contains the data sets.')
_DATASETS = flags.DEFINE_list(
    'datasets', 'digits,cifar10,cifar100,tiny_imagenet', 'Image data sets, '
    'comma-separated.')

_NUM_IMAGES = 10  # per data set
_CROP_SIZES = {'tiny_imagenet': 64}  # pixels; 32 for other data sets
_AUGMENTATION = {'cifar10': 'reflect_crop_flip',
                 'cifar100': 'zero_crop_flip_rotate'}


def panel(name: str, data_dir: str) -> contact_sheet.Panel:
  """Returns a panel of a data set, or of photographs if it is not available."""
  if data_dir or name == 'digits':
    dataset = sources.load(name, data_dir)
    title, images = name, dataset.train_inputs[:_NUM_IMAGES]
    augmentation = dataset.augmentation
  else:
    title = f'photographs instead of {name}'
    images = photographs(_CROP_SIZES.get(name, 32))
    augmentation = _AUGMENTATION.get(name, 'none')
  return contact_sheet.Panel(f'{title}: {augmentation}', images, augmentation)


def photographs(size: int) -> np.ndarray:
  """Returns crops of scikit-learn's photographs, uint8 [B, size, size, 3]."""
  from sklearn import datasets

  zoom = 128 // size  # photographs are downsampled by this factor
  crops = []
  for photograph in datasets.load_sample_images().images:
    h, w, _ = photograph.shape
    small = photograph[:h // zoom * zoom, :w // zoom * zoom].reshape(
        h // zoom, zoom, w // zoom, zoom, 3).mean((1, 3))
    crops += [small[i:i + size, j:j + size]
              for i in range(0, small.shape[0] - size + 1, size)
              for j in range(0, small.shape[1] - size + 1, size)]
  step = len(crops) // _NUM_IMAGES or 1
  return np.round(np.stack(crops[::step][:_NUM_IMAGES])).astype(np.uint8)


def main(argv: list[str]) -> None:
  if len(argv) != 2:
    raise app.UsageError('Give the path of one PNG file to write.')
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
