"""Augmentation against numpy's padding, one image at a time."""

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.data import augment

IMAGES = np.random.RandomState(0).randint(0, 256, (200, 12, 10, 3), np.uint8)


def all_crops(image):
  """Every reflect-padded crop of an image, plain and flipped, by its bytes."""
  padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode='reflect')
  h, w, _ = image.shape
  crops = {}
  for i in range(9):
    for j in range(9):
      crop = padded[i:i + h, j:j + w]
      crops[crop.tobytes()] = (i, j, 0)
      crops[crop[:, ::-1].tobytes()] = (i, j, 1)
  return crops


def test_crops_are_those_of_the_padded_image_and_all_as_likely():
  found = np.asarray(augment.reflect_crop_flip(
      jax.random.key(0), jnp.asarray(IMAGES)))
  assert found.dtype == np.uint8
  drawn = np.array([all_crops(image)[crop.tobytes()]
                    for image, crop in zip(IMAGES, found)])
  offsets, flips = drawn[:, :2], drawn[:, 2]
  assert set(offsets[:, 0]) == set(offsets[:, 1]) == set(range(9))
  # Within four standard errors of uniform.
  assert (abs(offsets.mean(0) - 4) < 4 * (60 / 9 / 200) ** .5).all()
  assert abs(flips.mean() - .5) < 4 * (.25 / 200) ** .5


def test_keys_decide():
  draw = lambda seed: augment.reflect_crop_flip(
      jax.random.key(seed), jnp.asarray(IMAGES[:8]))
  assert (draw(0) == draw(0)).all()
  assert (draw(0) != draw(1)).any()


def test_normalize():
  mean, std = (.1, .2, .3), (.4, .5, .6)
  found = augment.normalize(jnp.asarray(IMAGES), mean, std)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(
      found, (IMAGES / 255 - mean) / std, atol=1e-6)


def test_every_name_keeps_shape_and_type():
  for augment_fn in augment.AUGMENTATIONS.values():
    out = augment_fn(jax.random.key(0), jnp.asarray(IMAGES[:2]))
    assert out.shape == (2, 12, 10, 3) and out.dtype == jnp.uint8
