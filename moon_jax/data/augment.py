"""Preparing a batch of stored inputs for the network, on the device.

Each augmentation maps (key, images_BHWC) to images_BHWC and keeps the type;
`keep` takes any inputs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

PAD = 4  # pixels on each side
_MAX_DEGREES = 15.
_NOISE = 0x6e6f6973  # folded into the key; keys split off it are of small n


def reflect_crop_flip(key: jax.Array, images_BHWC: jax.Array) -> jax.Array:
  """Reflect-pad by 4, crop at random to the old size, flip half of them."""
  offset_B2, flip_B, _ = _draws(key, len(images_BHWC))
  return crop_flip(images_BHWC, offset_B2, flip_B)


def zero_crop_flip_rotate(key: jax.Array, images_BHWC: jax.Array) -> jax.Array:
  """Zero-pad by 4, crop at random, flip half, rotate by up to 15 degrees.

  As released with MOON for CIFAR-100: torchvision's RandomCrop(padding=4),
  RandomHorizontalFlip and RandomRotation(15), nearest pixels, black outside.
  """
  offset_B2, flip_B, turn_B = _draws(key, len(images_BHWC))
  return crop_flip_rotate(
      images_BHWC, offset_B2, flip_B, _MAX_DEGREES * (2 * turn_B - 1))


def _draws(key, b):
  """Offsets -4..4 [B, 2], flips [B], and numbers in 0..1 [B]; in one draw."""
  u_B4 = jax.random.uniform(key, (b, 4))
  offset_B2 = jnp.floor(u_B4[:, :2] * (2 * PAD + 1)).astype(jnp.int32) - PAD
  return offset_B2, u_B4[:, 2] < .5, u_B4[:, 3]


def crop_flip(images_BHWC: jax.Array, offset_B2: jax.Array,
              flip_B: jax.Array) -> jax.Array:
  """Crops reflect-padded images, and then exchanges left and right.

  The padded image is never made: each output pixel is read from where it came.

  Args:
    images_BHWC: the images.
    offset_B2: int, rows and columns by which the crop is shifted.
    flip_B: bool, whether left and right are exchanged after the crop.
  """
  b, h, w, _ = images_BHWC.shape
  down_1H, across_1W = jnp.arange(h)[None], jnp.arange(w)[None]
  across_BW = jnp.where(flip_B[:, None], across_1W[:, ::-1], across_1W)
  rows_BH = _reflect(offset_B2[:, :1] + down_1H, h)
  columns_BW = _reflect(offset_B2[:, 1:] + across_BW, w)
  return images_BHWC[
      jnp.arange(b)[:, None, None], rows_BH[:, :, None], columns_BW[:, None]]


def crop_flip_rotate(images_BHWC: jax.Array, offset_B2: jax.Array,
                     flip_B: jax.Array, angle_B: jax.Array) -> jax.Array:
  """Each pixel read, through rotation, flip and crop, from where it came.

  Args:
    images_BHWC: the images.
    offset_B2: int, rows and columns by which the crop is shifted.
    flip_B: bool, whether left and right are exchanged after the crop.
    angle_B: degrees of the rotation after that, counterclockwise.
  """
  b, h, w, _ = images_BHWC.shape
  angle_B11 = jnp.deg2rad(angle_B)[:, None, None]
  cos_B11, sin_B11 = jnp.cos(angle_B11), jnp.sin(angle_B11)
  # From the image's middle to the middles of pixels.
  y_1H1 = (jnp.arange(h, dtype=jnp.float32) + (.5 - h / 2))[None, :, None]
  x_11W = (jnp.arange(w, dtype=jnp.float32) + (.5 - w / 2))[None, None]
  row = jnp.floor(sin_B11 * x_11W + cos_B11 * y_1H1 + h / 2)
  column = jnp.floor(cos_B11 * x_11W - sin_B11 * y_1H1 + w / 2)
  row, column = row.astype(jnp.int32), column.astype(jnp.int32)
  inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
  column = jnp.where(flip_B[:, None, None], w - 1 - column, column)
  row = row + offset_B2[:, 0, None, None]
  column = column + offset_B2[:, 1, None, None]
  inside &= (row >= 0) & (row < h) & (column >= 0) & (column < w)
  found = images_BHWC[jnp.arange(b)[:, None, None], jnp.clip(row, 0, h - 1),
                      jnp.clip(column, 0, w - 1)]
  return jnp.where(inside[..., None], found, jnp.zeros_like(found))


def _reflect(index, size):
  """Mirrors indices just outside 0..size-1 at the edge pixels."""
  return (size - 1) - jnp.abs((size - 1) - jnp.abs(index))


def keep(key: jax.Array, inputs: jax.Array) -> jax.Array:
  """No augmentation."""
  del key
  return inputs


def add_noise(key: jax.Array, inputs: jax.Array,
              std_BC: jax.Array) -> jax.Array:
  """Adds Gaussian noise to float inputs: the feature skew of NIID-Bench.

  Li et al., ICDE 2022, section 4.2, https://arxiv.org/abs/2102.02079.

  Args:
    key: of the step.
    inputs: as normalised, [B, ..., C].
    std_BC: of each example and channel or feature; or [B, 1] for all of them.
  """
  noise = jax.random.normal(jax.random.fold_in(key, _NOISE), inputs.shape)
  b, c = std_BC.shape
  return inputs + noise * std_BC.reshape(b, *(1,) * (inputs.ndim - 2), c)


AUGMENTATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    'none': keep,
    'reflect_crop_flip': reflect_crop_flip,
    'zero_crop_flip_rotate': zero_crop_flip_rotate,
}


def normalize(inputs: jax.Array, mean: tuple[float, ...],
              std: tuple[float, ...]) -> jax.Array:
  """What the network is given of stored inputs.

  Images, uint8, become (images / 255 - mean) / std a channel; features
  (features - mean) / std, over their last axis; tokens, signed
  integers, stay, as int32.
  """
  if jnp.issubdtype(inputs.dtype, jnp.signedinteger):
    return inputs.astype(jnp.int32)
  if inputs.dtype == jnp.uint8:
    inputs = inputs.astype(jnp.float32) / 255
  of_channel = lambda values: jnp.float32(values).reshape(
      (1,) * (inputs.ndim - 1) + (-1,))
  return (inputs - of_channel(mean)) / of_channel(std)
