"""Preparing a batch of stored images for the network, on the device.

Each augmentation maps (key, images_BHWC) to images_BHWC and keeps the type.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

_PAD = 4  # pixels on each side


def reflect_crop_flip(key: jax.Array, images_BHWC: jax.Array) -> jax.Array:
  """Reflect-pad by 4, crop at random to the old size, flip half of them.

  The padded image is never made: each output pixel is read from where it came.
  """
  b, h, w, _ = images_BHWC.shape
  crop_key, flip_key = jax.random.split(key)
  offset_B2 = jax.random.randint(crop_key, (b, 2), -_PAD, _PAD + 1)
  flip_B = jax.random.bernoulli(flip_key, shape=(b,))
  down_1H, across_1W = jnp.arange(h)[None], jnp.arange(w)[None]
  across_BW = jnp.where(flip_B[:, None], across_1W[:, ::-1], across_1W)
  rows_BH = _reflect(offset_B2[:, :1] + down_1H, h)
  columns_BW = _reflect(offset_B2[:, 1:] + across_BW, w)
  return images_BHWC[
      jnp.arange(b)[:, None, None], rows_BH[:, :, None], columns_BW[:, None]]


def _reflect(index, size):
  """Mirrors indices just outside 0..size-1 at the edge pixels."""
  return (size - 1) - jnp.abs((size - 1) - jnp.abs(index))


def keep(key: jax.Array, images_BHWC: jax.Array) -> jax.Array:
  """No augmentation."""
  del key
  return images_BHWC


AUGMENTATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    'none': keep,
    'reflect_crop_flip': reflect_crop_flip,
}


def normalize(images_BHWC: jax.Array, mean: tuple[float, ...],
              std: tuple[float, ...]) -> jax.Array:
  """(images / 255 - mean) / std a channel; uint8 in, float32 out."""
  unit_BHWC = images_BHWC.astype(jnp.float32) / 255
  of_channel = lambda values: jnp.float32(values)[None, None, None]
  return (unit_BHWC - of_channel(mean)) / of_channel(std)
