"""Augments and normalizes a batch of stored inputs on the device.

An augmentation maps (key, images_BHWC) to images_BHWC of the same dtype. `keep`
accepts any inputs.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Le
import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.config.parts import checked, Count, FromRun
from moon_jax.data.dataset import Dataset
from moon_jax.errors import require

PAD = 4  # pixels on each side
_MAX_DEGREES = 15.
# Folded into the key of the step; too large to collide with a split key.
_NOISE = 0x6e6f6973


def reflect_crop_flip(key: jax.Array, images_BHWC: jax.Array) -> jax.Array:
  """Pads by reflection, crops at random and flips half of the images.

  The padding is 4 pixels on each side; the crop restores the original size.
  """
  offset_B2, flip_B, _ = _sample(key, len(images_BHWC))
  return crop_flip(images_BHWC, offset_B2, flip_B)


def zero_crop_flip_rotate(key: jax.Array, images_BHWC: jax.Array) -> jax.Array:
  """Pads with zeros, crops at random, flips half and rotates up to 15 degrees.

  The released code of MOON uses this augmentation for CIFAR-100: torchvision's
  RandomCrop(padding=4), RandomHorizontalFlip and RandomRotation(15), with
  nearest-neighbor interpolation and black outside of the image.
  """
  offset_B2, flip_B, turn_B = _sample(key, len(images_BHWC))
  return crop_flip_rotate(
      images_BHWC, offset_B2, flip_B, _MAX_DEGREES * (2 * turn_B - 1))


def _sample(key, b):
  """Returns offsets in -4..4 [B, 2], flips [B] and uniform numbers [B]."""
  u_B4 = jax.random.uniform(key, (b, 4))
  offset_B2 = jnp.floor(u_B4[:, :2] * (2 * PAD + 1)).astype(jnp.int32) - PAD
  return offset_B2, u_B4[:, 2] < .5, u_B4[:, 3]


def crop_flip(images_BHWC: jax.Array, offset_B2: jax.Array,
              flip_B: jax.Array) -> jax.Array:
  """Crops reflect-padded images and then flips them horizontally.

  The padded image is never stored: the index of each output pixel is mapped
  back to an input pixel.

  Args:
    images_BHWC: images.
    offset_B2: int, shift of the crop in pixels, rows and columns.
    flip_B: bool, whether to flip the image after the crop.
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
  """Crops images, flips them and rotates them; see `crop_flip`.

  Pixels outside of the input are 0. `angle_B` is in degrees, counterclockwise.
  """
  b, h, w, _ = images_BHWC.shape
  angle_B11 = jnp.deg2rad(angle_B)[:, None, None]
  cos_B11, sin_B11 = jnp.cos(angle_B11), jnp.sin(angle_B11)
  # Coordinates of pixel centers, relative to the center of the image.
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
  pixels = images_BHWC[jnp.arange(b)[:, None, None], jnp.clip(row, 0, h - 1),
                       jnp.clip(column, 0, w - 1)]
  return jnp.where(inside[..., None], pixels, jnp.zeros_like(pixels))


def _reflect(index, size):
  """Reflects indices outside of 0..size-1 at the edge pixels."""
  return (size - 1) - jnp.abs((size - 1) - jnp.abs(index))


def keep(key: jax.Array, inputs: jax.Array) -> jax.Array:
  """Returns the inputs unchanged."""
  return inputs


def add_noise(key: jax.Array, inputs: jax.Array,
              std_BC: jax.Array) -> jax.Array:
  """Adds Gaussian noise to inputs: the feature skew of NIID-Bench.

  Source: Li et al., ICDE 2022, section 4.2, https://arxiv.org/abs/2102.02079.

  Args:
    key: random key of the step.
    inputs: normalized inputs, float [B, ..., C].
    std_BC: standard deviation per example and channel or feature, or [B, 1] to
      share it over channels.
  """
  noise = jax.random.normal(jax.random.fold_in(key, _NOISE), inputs.shape)
  b, c = std_BC.shape
  return inputs + noise * std_BC.reshape(b, *(1,) * (inputs.ndim - 2), c)


# Functions of --augmentation, which return what is done after the above to
# normalized inputs: (key, inputs) -> inputs, `Mixup`, or None for nothing. A
# local step calls a function of its batch: (key, Batch) -> Batch.


class OfInputs(NamedTuple):
  """A function of the inputs of a batch, as one of the batch."""

  function: Callable[[jax.Array, jax.Array], jax.Array]

  def __call__(self, key: jax.Array, batch: Any) -> Any:
    """Returns the `Batch` with other inputs."""
    return batch._replace(inputs=self.function(key, batch.inputs))


def usual() -> None:
  """Adds nothing to the data set's own augmentation: the default."""


@checked
def cutout(length: Annotated[int, Ge(2)] = 8
           ) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Sets a square at a random place of each image to the mean of the data.

  The center is uniform over the image, so a part of the square may be outside.
  Source: DeVries and Taylor, 2017, https://arxiv.org/abs/1708.04552.

  Args:
    length: side of the square in pixels; an odd one is lowered by 1, as in the
      released code.
  """
  def augment(key, images_BHWC):
    require(images_BHWC.ndim == 4, 'augmentation=cutout', 'needs images',
            f'inputs of shape {list(images_BHWC.shape[1:])}', 'Remove it')
    u_B2 = jax.random.uniform(key, (len(images_BHWC), 2))
    size_12 = jnp.array([images_BHWC.shape[1:3]], jnp.float32)
    return cut(
        images_BHWC, jnp.floor(u_B2 * size_12).astype(jnp.int32), length)

  return augment


def cut(images_BHWC: jax.Array, center_B2: jax.Array,
        length: int) -> jax.Array:
  """Returns images with 0 from center - length // 2 to center + length // 2.

  The end does not count; rows and columns of centers are int [B, 2].
  """
  half = length // 2
  is_cut = []
  for axis, size in enumerate(images_BHWC.shape[1:3]):
    offset_BS = jnp.arange(size)[None] - center_B2[:, axis, None]
    is_cut.append((offset_BS >= -half) & (offset_BS < half))
  is_cut_BHW = is_cut[0][:, :, None] & is_cut[1][:, None]
  return jnp.where(is_cut_BHW[..., None], 0, images_BHWC)


# Operations of `randaugment`, by number.
OPERATIONS = (
    'identity', 'shear_x', 'shear_y', 'translate_x', 'translate_y', 'rotate',
    'brightness', 'color', 'contrast', 'sharpness', 'posterize', 'solarize',
    'autocontrast', 'equalize')
_STRONGEST = 30  # magnitude


@checked
def randaugment(dataset: FromRun[Dataset], n: Count = 2,
                m: Annotated[int, Ge(0), Le(_STRONGEST)] = 9
                ) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Applies random operations to each image, all with the same magnitude.

  Cubuk et al., RandAugment, 2020, https://arxiv.org/abs/1909.13719, with the 14
  operations and magnitudes of torchvision. Each image draws its own operations,
  and their signs. Pixels from outside of the image are black. Inputs are
  rounded to the 256 values of a pixel.

  Args:
    dataset: images, whose mean and standard deviation normalize inputs.
    n: number of operations, one after another.
    m: magnitude; at the greatest, 30, images are sheared by 0.3, moved by 45%
      of their size, rotated by 30 degrees, or changed in brightness, color,
      contrast or sharpness by 90%.
  """
  inputs, mean, std = dataset.train_inputs, dataset.mean, dataset.std
  require(dataset.is_images and inputs.shape[-1] in (1, 3),
          'augmentation=randaugment', 'needs images with 1 or 3 channels',
          f'{inputs.dtype} inputs of shape {list(inputs.shape[1:])}',
          'Remove it')

  def augment(key, images_BHWC):
    op_key, sign_key = jax.random.split(key)
    shape = n, len(images_BHWC)
    operation_NB = jax.random.randint(op_key, shape, 0, len(OPERATIONS))
    level_NB = jax.random.rademacher(sign_key, shape, jnp.float32) * (
        m / _STRONGEST)
    scale, shift = (jnp.float32(x) * 255 for x in (std, mean))
    pixels = jnp.clip(jnp.round(
        images_BHWC * scale[None, None, None] + shift[None, None, None]
        ), 0, 255)
    pixels, _ = lax.scan(lambda x_BHWC, drawn: (
        jax.vmap(transformed)(x_BHWC, *drawn), None), pixels,
                         (operation_NB, level_NB))
    return normalize(pixels.astype(jnp.uint8), mean, std)

  return augment


def transformed(x_HWC: jax.Array, operation: jax.Array,
                level: jax.Array) -> jax.Array:
  """Returns an image after an operation, as Pillow computes it.

  Args:
    x_HWC: whole numbers from 0 to 255, float32.
    operation: index in `OPERATIONS`.
    level: magnitude / 30, with a sign.
  """
  h, w, channels = x_HWC.shape
  sin, cos = (f(jnp.deg2rad(30 * level)) for f in (jnp.sin, jnp.cos))
  across, down = (jnp.trunc(150 / 331 * size * level) for size in (w, h))
  lean, zero, one = .3 * level, jnp.zeros_like(level), jnp.ones_like(level)
  same = one, zero, zero, zero, one, zero
  moves = jnp.array([
      same, (one, lean, zero, zero, one, zero),
      (one, zero, zero, lean, one, zero), (one, zero, across, zero, one, zero),
      (one, zero, zero, zero, one, down),
      (cos, -sin, (w - w * cos + h * sin) / 2,
       sin, cos, (h - w * sin - h * cos) / 2),
      *[same] * (len(OPERATIONS) - 6)])
  x_HWC = _moved(x_HWC, moves[operation])
  gray_HW1 = x_HWC if channels == 1 else jnp.floor(jnp.sum(
      x_HWC * jnp.float32([19595, 38470, 7471])[None, None], -1, keepdims=True
      ) / 2**16 + .5)

  def blend(other):  # with the image; factors above 1 extrapolate
    return jnp.floor(jnp.clip(other + (1 + .9 * level) * (x_HWC - other),
                              0, 255))

  step = 2**jnp.round(4 * jnp.abs(level))
  low, high = (f(x_HWC, (0, 1), keepdims=True) for f in (jnp.min, jnp.max))
  edges = jnp.where(high > low, jnp.floor(
      (x_HWC - low) * 255 / jnp.maximum(high - low, 1)), x_HWC)
  return lax.switch(jnp.maximum(operation - 5, 0), [
      lambda: x_HWC,
      lambda: blend(jnp.zeros_like(x_HWC)),
      lambda: blend(gray_HW1),
      lambda: blend(jnp.floor(jnp.mean(gray_HW1, keepdims=True) + .5)),
      lambda: blend(_smooth(x_HWC)),
      lambda: jnp.floor(x_HWC / step) * step,
      lambda: jnp.where(x_HWC < 255 * (1 - jnp.abs(level)), x_HWC, 255 - x_HWC),
      lambda: edges,
      lambda: jax.vmap(_equalized, -1, -1)(x_HWC)])


def _moved(x_HWC, move_6):
  """Returns the pixels at (a x + b y + c, d x + e y + f), or 0."""
  h, w, _ = x_HWC.shape
  a, b, c, d, e, f = move_6
  x_W, y_H = (jnp.arange(size, dtype=jnp.float32) + .5 for size in (w, h))
  x_1W, y_H1 = x_W[None], y_H[:, None]
  column, row = (jnp.floor(place).astype(jnp.int32) for place in (
      a * x_1W + b * y_H1 + c, d * x_1W + e * y_H1 + f))
  is_inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
  return jnp.where(is_inside[..., None], x_HWC[
      jnp.clip(row, 0, h - 1), jnp.clip(column, 0, w - 1)], 0)


def _smooth(x_HWC):
  """Returns weighted means of 3x3 pixels; those at the edges are unchanged."""
  h, w, _ = x_HWC.shape
  total = 4 * x_HWC[1:-1, 1:-1] + sum(
      x_HWC[i:i + h - 2, j:j + w - 2] for i in range(3) for j in range(3))
  return x_HWC.at[1:-1, 1:-1].set(jnp.floor(total / 13 + .5))


def _equalized(x_HW):
  """Returns a channel of which each part of 0 to 255 is as frequent."""
  ordered = jnp.sort(x_HW.ravel())
  below_HW = jnp.searchsorted(ordered, x_HW)
  step = jnp.searchsorted(ordered, ordered[-1]) // 255
  made = jnp.minimum((step // 2 + below_HW) // jnp.maximum(step, 1), 255)
  return jnp.where(step > 0, made.astype(x_HW.dtype), x_HW)


class Mixup(NamedTuple):
  """Mixes the examples of a batch; see `mixup`."""

  alpha: float

  def __call__(self, key: jax.Array, batch: Any) -> Any:
    """Returns the `Batch` with mixed inputs, and with `Batch.mixed`.

    Each real example is the partner of one; padding is its own.
    """
    inputs, mask_B = batch.inputs, batch.mask
    order_key, weight_key = jax.random.split(key)
    is_real_B = mask_B > 0
    # The real examples in random order, and then padding.
    order_B = jnp.argsort(jnp.where(
        is_real_B, jax.random.uniform(order_key, mask_B.shape), 2.))
    partner_B = jnp.where(is_real_B, order_B[jnp.cumsum(is_real_B) - 1],
                          jnp.arange(len(mask_B)))
    weight = jax.random.beta(weight_key, self.alpha, self.alpha)
    return batch._replace(
        inputs=weight * inputs + (1 - weight) * inputs[partner_B],
        mixed=(batch.labels[partner_B], weight))


@checked
def mixup(alpha: Annotated[float, Gt(0)] = 1.) -> Mixup:
  """Mixes each example, and its loss, with another example of its batch.

      x = lambda x_i + (1 - lambda) x_j
      loss = lambda loss(f(x), y_i) + (1 - lambda) loss(f(x), y_j)

  Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018,
  https://arxiv.org/abs/1710.09412. As in their code, a batch has one lambda ~
  Beta(alpha, alpha), and j is a random permutation of its examples. Other terms
  of a method's loss take the label y_i.

  Args:
    alpha: lambda is drawn from Beta(alpha, alpha). 1 is uniform; small values
      give lambda near 0 or 1, which hardly mixes; large values near 1 / 2.
  """
  return Mixup(alpha)


AUGMENTATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    'none': keep,
    'reflect_crop_flip': reflect_crop_flip,
    'zero_crop_flip_rotate': zero_crop_flip_rotate,
}


def normalize(inputs: jax.Array, mean: tuple[float, ...],
              std: tuple[float, ...]) -> jax.Array:
  """Converts stored inputs to the inputs of the network.

  Args:
    inputs: images, uint8 [B, H, W, C]; features, float [B, ..., F]; or tokens,
      signed integers [B, T].
    mean: mean per channel (of pixels scaled to 0..1) or per feature; one value
      applies to all of them.
    std: standard deviation, in the same form.

  Returns:
    Images as (inputs / 255 - mean) / std, features as (inputs - mean) / std,
    both float32; tokens unchanged as int32.
  """
  if jnp.issubdtype(inputs.dtype, jnp.signedinteger):
    return inputs.astype(jnp.int32)
  if inputs.dtype == jnp.uint8:
    inputs = inputs.astype(jnp.float32) / 255
  per_channel = lambda values: jnp.float32(values).reshape(
      (1,) * (inputs.ndim - 1) + (-1,))
  return (inputs - per_channel(mean)) / per_channel(std)
