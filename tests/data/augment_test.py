"""Augmentation, compared with numpy and Pillow one image at a time."""

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageEnhance, ImageOps
import pytest

from moon_jax import tasks
from moon_jax.algorithms.base import Batch
from moon_jax.config import parts
from moon_jax.data import augment
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

IMAGES = np.random.RandomState(0).randint(0, 256, (200, 12, 10, 3), np.uint8)


def all_crops(image):
  """Maps the bytes of each crop of a padded image to (row, column, flip)."""
  padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode='reflect')
  h, w, _ = image.shape
  crops = {}
  for i in range(9):
    for j in range(9):
      crop = padded[i:i + h, j:j + w]
      crops[crop.tobytes()] = (i, j, 0)
      crops[crop[:, ::-1].tobytes()] = (i, j, 1)
  return crops


def test_crops_equal_numpy_padding_and_are_uniform():
  actual = np.asarray(jax.jit(augment.reflect_crop_flip)(
      jax.random.key(0), IMAGES))
  assert actual.dtype == np.uint8
  drawn = np.array([all_crops(image)[crop.tobytes()]
                    for image, crop in zip(IMAGES, actual)])
  offsets, flips = drawn[:, :2], drawn[:, 2]
  assert set(offsets[:, 0]) == set(offsets[:, 1]) == set(range(9))
  # Within four standard errors of uniform.
  assert (abs(offsets.mean(0) - 4) < 4 * (60 / 9 / 200) ** .5).all()
  assert abs(flips.mean() - .5) < 4 * (.25 / 200) ** .5


def test_rotated_crops_equal_pillow():
  """torchvision calls Pillow to rotate."""
  random = np.random.RandomState(1)
  images = random.randint(1, 256, (60, 32, 32, 3), np.uint8)
  offsets = random.randint(-4, 5, (60, 2))
  flips, angles = random.rand(60) < .5, random.uniform(-15, 15, 60)
  actual = jax.jit(augment.crop_flip_rotate)(
      images, offsets, flips, np.float32(angles))
  mismatch = 0
  for image, (down, across), flip, angle, ours in zip(
      images, offsets, flips, angles, np.asarray(actual)):
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
    crop = padded[4 + down:36 + down, 4 + across:36 + across]
    crop = crop[:, ::-1] if flip else crop
    theirs = np.asarray(Image.fromarray(crop).rotate(
        angle, resample=Image.Resampling.NEAREST))
    mismatch += (theirs != ours).any(-1).mean()
  assert mismatch / 60 < 1e-3  # rounding differs if a center is on an edge


def test_crops_flips_and_angles_are_uniform():
  """Each pixel stores its position, so the center pixels show the transform."""
  h = w = 33
  position = np.stack(
      np.meshgrid(np.arange(h), np.arange(w), indexing='ij'), -1)
  pixels = np.concatenate([position, position[..., :1]], -1)
  images = jnp.asarray(
      np.broadcast_to(pixels, (2000, h, w, 3)), jnp.uint8)
  actual = np.asarray(jax.jit(augment.zero_crop_flip_rotate)(
      jax.random.key(0), images)).astype(int)
  center, right = actual[:, 16, 16, :2], actual[:, 16, 28, :2]
  offsets = center - 16
  flips = right[:, 1] < center[:, 1]
  assert set(offsets[:, 0]) == set(offsets[:, 1]) == set(range(-4, 5))
  assert (abs(offsets.mean(0)) < 4 * (60 / 9 / 2000) ** .5).all()
  assert abs(flips.mean() - .5) < 4 * (.25 / 2000) ** .5
  # A pixel 12 columns right of the center moves by 12 sin(angle) rows.
  rows = right[:, 0] - center[:, 0]
  assert rows.min() == -3 and rows.max() == 3
  assert abs(rows.mean()) < .2


@pytest.mark.parametrize('inputs, mean, std', [
    (IMAGES, (.1, .2, .3), (.4, .5, .6)),
    (IMAGES[..., :1].astype(np.float32), (0.,), (2.,)),
    (np.float32(IMAGES[:, 0, 0]), (1., 2., 3.), (.5, 1., 2.))])
def test_normalize(inputs, mean, std):
  actual = augment.normalize(jnp.asarray(inputs), mean, std)
  assert actual.dtype == jnp.float32
  scale = 255 if inputs.dtype == np.uint8 else 1
  np.testing.assert_allclose(
      actual, (inputs / scale - mean) / std, rtol=1e-6, atol=1e-6)


def test_tokens_are_not_normalized():
  tokens = augment.normalize(jnp.arange(6, dtype=jnp.int8), (0.,), (1.,))
  assert tokens.dtype == jnp.int32 and list(tokens) == list(range(6))


def test_noise_has_the_standard_deviation_of_each_example():
  std = np.array([0, .1, 2.], np.float32)[:, None]
  add_noise = jax.jit(augment.add_noise)
  noise, other = (np.asarray(add_noise(
      jax.random.key(seed), jnp.ones((3, 100, 100)), std)) - 1
                  for seed in range(2))
  np.testing.assert_allclose(noise.std((1, 2)), std[:, 0], rtol=.02)
  assert np.abs(noise.mean((1, 2))).max() < .05
  for a, b in (noise[1], noise[2]), (noise[2], other[2]):
    assert np.abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < .05
  plain, scaled = (np.asarray(add_noise(
      jax.random.key(0), jnp.ones((3, 9, 2)), of_channels)) - 1
                   for of_channels in (std, std * np.float32([1, 10])))
  np.testing.assert_allclose(scaled, plain * [1, 10], atol=1e-5)


def test_noise_is_independent_of_flips():
  """The draws of the step's own key decide about crops and flips."""
  key, shape = jax.random.key(0), (64, 12, 12, 1)
  noise = augment.add_noise(key, jnp.zeros(shape), jnp.ones((64, 1)))
  assert abs(np.corrcoef(
      np.ravel(noise), np.ravel(jax.random.normal(key, shape)))[0, 1]) < .05


def test_cutout_equals_the_released_code():
  """Cutout.__call__ of uoguelph-mlrg/Cutout, with the same centers."""
  random = np.random.RandomState(0)
  images = random.normal(size=(60, 9, 7, 3)).astype(np.float32)
  centers = np.stack(
      [random.randint(9, size=60), random.randint(7, size=60)], 1)
  for length in 2, 5, 8:
    expected = images.copy()
    for image, (y, x) in zip(expected, centers):
      y1, y2 = np.clip([y - length // 2, y + length // 2], 0, 9)
      x1, x2 = np.clip([x - length // 2, x + length // 2], 0, 7)
      image[y1:y2, x1:x2] = 0
    np.testing.assert_array_equal(
        augment.cut(images, jnp.array(centers), length), expected)


def test_centers_of_cutout_are_uniform():
  """Of squares of 2 rows and columns, the last ones are at the center."""
  cut = np.asarray(jax.jit(augment.cutout(2))(
      jax.random.key(0), np.ones((6000, 3, 4, 1), np.float32)))[..., 0] == 0
  rows = 2 - cut[:, ::-1].any(2).argmax(1)
  columns = 3 - cut[..., ::-1].any(1).argmax(1)
  counts = np.bincount(4 * rows + columns, minlength=12)
  assert abs(counts - 500).max() < 5 * np.sqrt(500)


def pillow(image, name, level):
  """Returns an image after an operation of torchvision's RandAugment."""
  move = lambda *m: image.transform(image.size, Image.Transform.AFFINE, m)
  shift = lambda size: int(150 / 331 * size * level)
  if enhance := getattr(ImageEnhance, name.title(), None):
    return enhance(image).enhance(1 + .9 * level)
  return {
      'identity': lambda: image,
      'shear_x': lambda: move(1, .3 * level, 0, 0, 1, 0),
      'shear_y': lambda: move(1, 0, 0, .3 * level, 1, 0),
      'translate_x': lambda: move(1, 0, shift(image.width), 0, 1, 0),
      'translate_y': lambda: move(1, 0, 0, 0, 1, shift(image.height)),
      'rotate': lambda: image.rotate(30 * level),
      'posterize': lambda: ImageOps.posterize(image, 8 - round(
          4 * abs(level))),
      'solarize': lambda: ImageOps.solarize(image, 255 * (1 - abs(level))),
      'autocontrast': lambda: ImageOps.autocontrast(image),
      'equalize': lambda: ImageOps.equalize(image)}[name]()


@pytest.mark.parametrize('channels', [1, 3])
def test_operations_of_randaugment_equal_pillow(channels):
  random = np.random.RandomState(0)
  levels = np.repeat(np.float32([-1, -.3, .1, .3, .7]), 2)
  images = random.randint(0, 256, (len(levels), 24, 30, channels))
  images[::2] = (images[::2] + 500) // 4  # of less contrast
  transform = jax.jit(jax.vmap(jax.vmap(
      augment.transformed, (None, 0, None)), (0, None, 0)))
  ours = np.asarray(transform(np.float32(images), jnp.arange(len(
      augment.OPERATIONS)), levels))
  for image, level, made in zip(np.uint8(images), levels.tolist(), ours):
    given = Image.fromarray(image[..., 0] if channels == 1 else image)
    for name, x in zip(augment.OPERATIONS, made):
      theirs = np.asarray(pillow(given, name, level)).reshape(image.shape)
      apart = abs(x - theirs)
      # Products that are whole numbers are rounded down in float32 or not.
      assert apart.max() <= 1 and (apart > 0).mean() < .02, (name, level)
      if name in ('rotate', 'identity', 'equalize'):
        assert apart.max() == 0


def test_randaugment_draws_operations_and_signs_for_each_image():
  mean, std = (.1, .2, .3), (.4, .5, .6)
  call = parts.parse('augmentation', 'randaugment(n=2, m=30)')
  data = Dataset('', IMAGES, (), IMAGES, (), (), mean, std)
  made = parts.make('augmentation', call, dataset=data)
  levels, operations = (x.ravel() for x in np.meshgrid(
      np.float32([-1, 1]), np.arange(len(augment.OPERATIONS))))
  i, j = (x.ravel() for x in np.mgrid[:28, :28])
  transform = jax.jit(jax.vmap(augment.transformed))
  pixels = jnp.repeat(jnp.float32(IMAGES[:1] // 2 + 60), len(i), 0)
  twice = transform(transform(pixels, operations[i], levels[i]),
                    operations[j], levels[j])
  outcomes, inputs = (augment.normalize(x.astype(jnp.uint8), mean, std)
                      for x in (twice, pixels))
  valid, drawn = ({x.tobytes() for x in np.asarray(images)} for images in (
      outcomes, jax.jit(made)(jax.random.key(0), inputs)))
  with pytest.raises(UserError, match='1 or 3 channels; got float32 inputs'):
    augment.randaugment(data._replace(train_inputs=np.float32(IMAGES)))
  assert drawn <= valid
  assert len(drawn) > len(valid) / 3


def test_mixup_equals_a_loop_and_leaves_padding_out():
  """With soft labels as in the paper; rows 2 and 5 are padding."""
  random = np.random.RandomState(0)
  inputs, logits = np.float32(random.normal(size=(2, 8, 3)))
  labels = np.int32([0, 1, 2, 0, 1, 2, 2, 1])
  mask = np.float32([1, 1, 0, 1, 1, 0, 1, 1])
  real = np.flatnonzero(mask)

  @jax.jit
  def run(key):
    batch = augment.mixup(.4)(
        key, Batch(jnp.array(inputs), jnp.arange(8), mask))
    partner, weight = batch.mixed
    mixed = batch._replace(
        labels=labels, mixed=(jnp.array(labels)[partner], weight))
    return batch.inputs, partner, weight, tasks.CLASSIFICATION.loss(
        jnp.array(logits), mixed)

  keys = jax.random.split(jax.random.key(0), 500)
  made = [np.asarray(x) for x in jax.vmap(run)(keys)]
  log_p = np.asarray(jax.nn.log_softmax(logits))
  for x, partner, weight, loss in zip(*(values[:20] for values in made)):
    assert sorted(partner[real]) == real.tolist()
    assert partner[[2, 5]].tolist() == [2, 5]
    expected = 0
    for i in real:
      j = partner[i]
      np.testing.assert_allclose(
          x[i], weight * inputs[i] + (1 - weight) * inputs[j], 1e-5, 1e-6)
      soft = weight * np.eye(3)[labels[i]] + (1 - weight) * np.eye(3)[labels[j]]
      expected -= soft @ log_p[i] / len(real)
    np.testing.assert_allclose(loss, expected, 1e-5)
  _, partners, weights, _ = made
  counts = np.array([[np.sum(partners[:, i] == j) for j in real] for i in real])
  assert abs(counts - 500 / 6).max() < 5 * np.sqrt(500 / 6)
  assert abs(weights.mean() - .5) < .07  # of Beta(.4, .4)
  assert abs(weights.var() - 1 / (4 * 1.8)) < .02
