"""Draws images of each data set next to augmented copies.

    python -m experiments.contact_sheet SHEET.png

In place of images other than the digits are crops of photographs that
scikit-learn ships, of the same size.
"""

from collections.abc import Sequence
import pathlib
import sys
from typing import BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.data import augment, sources
from moon_jax.results import figures

DATASETS = 'digits', 'cifar10', 'cifar100', 'tiny_imagenet'
_NUM_IMAGES = 10  # per data set
_NUM_DRAWS = 5  # augmented copies of each image
_GAP = 2  # pixels between images
_CROP_SIZES = {'tiny_imagenet': 64}  # pixels; 32 for other data sets
_AUGMENTATION = {'cifar10': 'reflect_crop_flip',
                 'cifar100': 'zero_crop_flip_rotate'}


class Panel(NamedTuple):
  """Images of one data set."""

  title: str
  images: np.ndarray  # uint8 [B, H, W, C], as stored
  augmentation: str  # a key of moon_jax.data.augment.AUGMENTATIONS


def draw(panels: Sequence[Panel], path: pathlib.Path | BinaryIO) -> None:
  """Draws the panels, one below the other, to a PNG file."""
  figure = figures.empty(7, 4.6 * len(panels))
  axes = np.atleast_1d(figure.subplots(len(panels)))
  for ax, panel in zip(axes, panels):
    sheet = tile(panel)
    ax.imshow(sheet.squeeze(), cmap='gray', vmin=0, vmax=255,
              interpolation='nearest')
    ax.set_title(panel.title)
    height = sheet.shape[0] // (1 + _NUM_DRAWS)
    ax.set_yticks((np.arange(1 + _NUM_DRAWS) + .5) * height,
                  ['stored', *(f'draw {i + 1}' for i in range(_NUM_DRAWS))])
    ax.set_xticks([])
    ax.tick_params(length=0)
  figure.savefig(path, dpi=80, bbox_inches='tight')


def tile(panel: Panel) -> np.ndarray:
  """Returns the stored images in one row, and one row for each draw.

  The result is uint8 [R (H + 2), B (W + 2), C] for R rows, with white gaps of 2
  pixels.
  """
  augment_fn = augment.AUGMENTATIONS[panel.augmentation]
  keys = jax.random.split(jax.random.key(0), _NUM_DRAWS)
  rows = [panel.images, *(augment_fn(key, jnp.asarray(panel.images))
                          for key in keys)]
  gaps = ((0, _GAP), (0, _GAP), (0, 0))
  pad = lambda image: np.pad(image, gaps, constant_values=255)
  return np.concatenate([np.concatenate([
      pad(image) for image in np.asarray(row)], 1) for row in rows])


def panel(name: str) -> Panel:
  """Returns a panel of the digits, or of photographs."""
  if name == 'digits':
    dataset = sources.load_dataset(name)
    title, images = name, dataset.train_inputs[:_NUM_IMAGES]
    augmentation = dataset.augmentation
  else:
    title = f'photographs instead of {name}'
    images = photographs(_CROP_SIZES.get(name, 32))
    augmentation = _AUGMENTATION.get(name, 'none')
  return Panel(f'{title}: {augmentation}', images, augmentation)


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


if __name__ == '__main__':
  draw([panel(name) for name in DATASETS], pathlib.Path(sys.argv[1]))
