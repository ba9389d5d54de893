"""Draws images as they are stored, and below them as clients train on them."""

from collections.abc import Sequence
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.data import augment

_DRAWS = 5  # of each image
_GAP = 2  # pixels between images


class Panel(NamedTuple):
  """Images of one data set."""

  title: str
  images: np.ndarray  # uint8 [B, H, W, C], as stored
  augmentation: str  # a name of moon_jax.data.augment.AUGMENTATIONS


def draw(panels: Sequence[Panel], path: pathlib.Path, seed: int = 0) -> None:
  """Writes a PNG, a panel above the other.

  Args:
    panels: what to draw.
    path: the file to write.
    seed: of the augmentation.
  """
  # Not pyplot: it looks for a display and keeps what it drew.
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
    height = sheet.shape[0] // (1 + _DRAWS)
    ax.set_yticks((np.arange(1 + _DRAWS) + .5) * height,
                  ['stored', *(f'draw {i + 1}' for i in range(_DRAWS))])
    ax.set_xticks([])
    ax.tick_params(length=0)
  figure.savefig(path, dpi=80, bbox_inches='tight')


def tile(panel: Panel, seed: int) -> np.ndarray:
  """The stored images in a row, and a row for each draw: [R (H+2), B (W+2), C].
  """
  augment_fn = augment.AUGMENTATIONS[panel.augmentation]
  keys = jax.random.split(jax.random.key(seed), _DRAWS)
  rows = [panel.images, *(augment_fn(key, jnp.asarray(panel.images))
                          for key in keys)]
  gaps = ((0, _GAP), (0, _GAP), (0, 0))
  framed = lambda image: np.pad(image, gaps, constant_values=255)
  return np.concatenate([np.concatenate([
      framed(image) for image in np.asarray(row)], 1) for row in rows])
