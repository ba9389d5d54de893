"""Contact sheets show the stored and the augmented images."""

import jax
import numpy as np
from PIL import Image

from experiments import contact_sheet as experiment
from moon_jax.data import augment


def test_rows_are_the_stored_and_the_augmented_images(tmp_path):
  images = experiment.photographs(32)
  assert images.shape == (10, 32, 32, 3) and images.std() > 30
  panel = experiment.Panel('photographs', images, 'reflect_crop_flip')
  sheet = experiment.tile(panel)
  assert sheet.shape == (6 * 34, 10 * 34, 3)
  at = lambda row, column: sheet[
      34 * row:34 * row + 32, 34 * column:34 * column + 32]
  np.testing.assert_array_equal(at(0, 7), images[7])
  keys = jax.random.split(jax.random.key(0), 5)
  np.testing.assert_array_equal(
      at(3, 7), augment.reflect_crop_flip(keys[2], images)[7])
  experiment.draw([panel, experiment.panel('digits')], tmp_path / 'sheet.png')
  assert np.asarray(Image.open(tmp_path / 'sheet.png')).std() > 30


def test_photographs_replace_a_missing_data_set():
  panel = experiment.panel('tiny_imagenet')
  assert panel.images.shape == (10, 64, 64, 3)
  assert panel.title == 'photographs instead of tiny_imagenet: none'
