"""Checks the arrays of a data set that was made in Python.

`moon_jax.data.sources.arrays` converts what it can; `Dataset` converts nothing,
so what does not fit must be an error before training, not a wrong result.
"""

from typing import Any

import numpy as np

from moon_jax.data import mapped
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError


def check(data: Any) -> None:
  """Checks types, shapes and values of the inputs and the labels.

  Raises:
    UserError: naming the first array that does not fit.
  """
  if not isinstance(data, Dataset):
    raise UserError(
        'data must be a moon_jax.Dataset, such as moon_jax.load_dataset('
        f"'digits'); got a {type(data).__name__}. Dataset(name, train_inputs, "
        'train_labels, test_inputs, test_labels, class_names) makes one')
  for part in 'train', 'test':
    inputs = getattr(data, f'{part}_inputs')
    _check_inputs(f'{data.name}: {part}_inputs', inputs)
    _check_labels(f'{data.name}: {part}_labels', f'{part}_inputs',
                  getattr(data, f'{part}_labels'), len(inputs))
  kinds = [f'{x.dtype} {list(x.shape[1:])}'
           for x in (data.train_inputs, data.test_inputs)]
  if kinds[0] != kinds[1]:
    raise UserError(
        f'{data.name}: examples of train_inputs and test_inputs must have one '
        f'type and shape; got {kinds[0]} and {kinds[1]}. Convert test_inputs '
        'as train_inputs')


def _check_inputs(name, inputs):
  if not hasattr(inputs, 'dtype'):
    raise UserError(f'{name} must be a numpy array; got a '
                    f'{type(inputs).__name__}. Pass numpy.asarray(...)')
  shape, kind = list(inputs.shape), inputs.dtype.kind
  if kind not in 'fiu' and inputs.dtype.name != 'bfloat16':
    raise UserError(
        f'{name} must be uint8 images [N, H, W, C], float32 features [N, F] or '
        f'integer tokens [N, T]; got {inputs.dtype} {shape}. Convert them')
  if not shape or not inputs.shape[0]:
    raise UserError(f'{name} must hold one example or more; got shape {shape}')
  if inputs.dtype == np.uint8:
    if len(shape) != 4:
      raise UserError(
          f'{name} is uint8, so it must be images [N, H, W, C]; got {shape}. '
          'Add a last axis of length 1 to gray images; give features as '
          'float32')
    if shape[1] in (1, 3) and shape[3] not in (1, 3, 4):
      raise UserError(
          f'{name} must be images [N, H, W, C]; got {shape}, which looks like '
          'channels first. Pass images.transpose(0, 2, 3, 1)')
  if kind == 'f' and not mapped.is_mapped(inputs):
    is_bad = ~np.isfinite(inputs).reshape(len(inputs), -1).all(1)
    if is_bad.any():
      raise UserError(
          f'{name} must be finite; got NaN or infinity in {is_bad.sum()} '
          f'examples, the first at index {is_bad.argmax()}. Replace or remove '
          'them')


def _check_labels(name, of, labels, count):
  """Checks that labels are integers, one for each of `count` inputs."""
  if not hasattr(labels, 'dtype'):
    raise UserError(f'{name} must be a numpy array of integers; got a '
                    f'{type(labels).__name__}. Pass numpy.asarray(labels)')
  got = f'got {labels.dtype} {list(labels.shape)}'
  if labels.ndim == 2:
    raise UserError(
        f'{name} must be classes, integers [N], not one-hot rows; {got}. Pass '
        'labels.argmax(1)')
  if labels.dtype.kind not in 'iu':
    raise UserError(f'{name} must be classes, integers [N]; {got}. Pass '
                    "labels.astype('int32')")
  if labels.shape != (count,):
    raise UserError(f'{name} must have one class for each of the {count} '
                    f'examples of {of}; {got}. Give as many of both')
