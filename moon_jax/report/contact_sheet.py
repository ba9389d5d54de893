"""Draws images as they are stored, above augmented copies of them."""

from collections.abc import Sequence
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.data import augment

_NUM_DRAWS = 5  # augmented copies of each image
_GAP = 2  # pixels between images


class Panel(NamedTuple):
  """Images of one data set."""

  title: str
  images: np.ndarray  # uint8 [B, H, W, C], as stored
  augmentation: str  # a key of moon_jax.data.augment.AUGMENTATIONS


def draw(panels: Sequence[Panel], path: pathlib.Path, seed: int = 0) -> None:
  """Draws the panels, one below the other, to a PNG file.

  Args:
    panels: the images of each data set.
    path: the file to write.
    seed: seed of the augmentation.
  """
  # pyplot would look for a display and keep each figure in memory.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(7, 4.6 * len(panels)), layout='constrained')
  FigureCanvasAgg(figure)
  axes = np.atleast_1d(figure.subplots(len(panels)))
  for ax, panel in zip(axes, panels):
    sheet = tile(panel, seed)
    ax.imshow(sheet.squeeze(), cmap='gray', vmin=0, vmax=255,
              interpolation='nearest')
    ax.set_title(panel.title)
    height = sheet.shape[0] // (1 + _NUM_DRAWS)
    ax.set_yticks((np.arange(1 + _NUM_DRAWS) + .5) * height,
                  ['stored', *(f'draw {i + 1}' for i in range(_NUM_DRAWS))])
    ax.set_xticks([])
    ax.tick_params(length=0)
  figure.savefig(path, dpi=80, bbox_inches='tight')


def tile(panel: Panel, seed: int) -> np.ndarray:
  """Returns the stored images in one row, and one row for each draw.

  Args:
    panel: the images, [B, H, W, C].
    seed: seed of the augmentation.

  Returns:
    uint8 [R (H + 2), B (W + 2), C] for R rows, with white gaps of 2 pixels.
  """
  augment_fn = augment.AUGMENTATIONS[panel.augmentation]
  keys = jax.random.split(jax.random.key(seed), _NUM_DRAWS)
  rows = [panel.images, *(augment_fn(key, jnp.asarray(panel.images))
                          for key in keys)]
  gaps = ((0, _GAP), (0, _GAP), (0, 0))
  pad = lambda image: np.pad(image, gaps, constant_values=255)
  return np.concatenate([np.concatenate([
      pad(image) for image in np.asarray(row)], 1) for row in rows])
