"""Reads data sets that tensorflow-datasets prepared, without TensorFlow.

Only the array_record format can be read without TensorFlow, see
https://www.tensorflow.org/datasets/data_source. Preparing a data set of images
needs TensorFlow.
"""

import json
import logging
import pathlib

import numpy as np

from moon_jax.errors import UserError

_PREPARE = ("Prepare it with tfds.load('{name}', builder_kwargs={{"
            "'file_format': 'array_record'}}) where TensorFlow is installed")


def find(root: pathlib.Path, name: str) -> pathlib.Path | None:
  """Returns the directory of the newest prepared version, or None.

  `root` is a directory of prepared data sets, or that of one version; `name` is
  the data set's in tensorflow-datasets.
  """
  infos = sorted(root.glob(f'{name}/*/dataset_info.json'), key=_version)
  root_info = root / 'dataset_info.json'
  if _dataset_name(root_info) == name:
    infos.append(root_info)
  return infos[-1].parent if infos else None


def _version(info):
  """Returns the version as numbers; [] of an unfinished one, which is first."""
  numbers = info.parent.name.split('.')
  return [*map(int, numbers)] if all(n.isdecimal() for n in numbers) else []


def _dataset_name(info):
  try:
    return json.loads(info.read_bytes())['name']
  except (OSError, ValueError, LookupError, TypeError, RecursionError):
    return None  # it is invalid


def read(directory: pathlib.Path):
  """Reads a prepared data set in the official order of its examples.

  tensorflow-datasets shuffles examples; sorting by their `id` restores the
  official order. Examples without `id` (MNIST, Fashion-MNIST) remain in the
  stored order, which differs from that of the published files.

  Returns:
    Training images, training labels, test images, test labels.
  """
  import tensorflow_datasets as tfds

  logging.getLogger('absl').setLevel('ERROR')  # hides a hint about OpenCV
  try:
    builder = tfds.builder_from_directory(directory)
    splits = []
    for split in ('train', 'test'):
      examples = sorted(
          builder.as_data_source(split), key=lambda e: e.get('id', 0))
      splits.append(np.stack([e['image'] for e in examples]))
      splits.append(np.array([e['label'] for e in examples], np.int32))
    return tuple(splits)
  except Exception as error:  # readers raise many types, some from C++
    reason = str(error).strip().partition('\n')[0]
    raise UserError(
        f'--data_dir: {directory} cannot be read as array_record ({reason}). '
        + _PREPARE.format(name=directory.parent.name)) from error
  finally:
    logging.getLogger('absl').setLevel('NOTSET')


def prepare(name: str):
  """Prepares `name` in the default directory of tensorflow-datasets, reads it.

  Returns:
    The arrays of `read`.
  """
  try:
    import tensorflow  # noqa: F401  pylint: disable=unused-import
  except ImportError:
    raise UserError(
        '--data_dir=tfds needs TensorFlow, which is not installed; pip install '
        'tensorflow, or give --data_dir=DIRECTORY to read or download the '
        'published files') from None
  import tensorflow_datasets as tfds

  builder = tfds.builder(name, file_format='array_record')
  try:
    builder.download_and_prepare()
  except Exception as error:
    raise UserError(f'--data_dir=tfds could not prepare {name}: {error}. Give '
                    '--data_dir=DIRECTORY instead') from error
  return read(pathlib.Path(builder.data_dir))
