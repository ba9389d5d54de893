"""Data sets that tensorflow-datasets has prepared, read without TensorFlow.

https://www.tensorflow.org/datasets/data_source. Only the array_record format
can be read so; only preparing one of image data needs TensorFlow.
"""

import json
import logging
import pathlib

import numpy as np

from moon_jax.errors import UserError

_PREPARE = ("tfds.load('{name}', builder_kwargs={{'file_format': "
            "'array_record'}}) where TensorFlow is installed prepares one")


def find(root: pathlib.Path, name: str) -> pathlib.Path | None:
  """The newest prepared version of data set `name` in `root`, if any.

  `root` may also be the directory of a version itself.
  """
  found = sorted(root.glob(f'{name}/*/dataset_info.json'))
  own = root / 'dataset_info.json'
  if _name_in(own) == name:
    found.append(own)
  return found[-1].parent if found else None


def _name_in(info: pathlib.Path) -> str | None:
  """Which data set a dataset_info.json tells of, if it is one."""
  try:
    return json.loads(info.read_bytes())['name']
  except (OSError, ValueError, LookupError, TypeError, RecursionError):
    return None


def read(directory: pathlib.Path):
  """Train images, train labels, test images, test labels, in official order.

  tensorflow-datasets stores examples shuffled; their `id` restores the order.
  Those of data sets without (MNIST, Fashion-MNIST) stay in the order in which
  they are stored, which is not that of the published files.

  Raises:
    UserError: where `directory` is damaged or in another format.
  """
  import tensorflow_datasets as tfds

  logging.getLogger('absl').setLevel('ERROR')  # advice about OpenCV
  try:
    builder = tfds.builder_from_directory(directory)
    splits = []
    for split in ('train', 'test'):
      examples = sorted(
          builder.as_data_source(split), key=lambda e: e.get('id', 0))
      splits.append(np.stack([e['image'] for e in examples]))
      splits.append(np.array([e['label'] for e in examples], np.int32))
    return tuple(splits)
  except Exception as error:  # its readers raise many kinds, some from C++
    reason = str(error).strip().partition('\n')[0]
    raise UserError(
        f'--data_dir: {directory} cannot be read as array_record ({reason}). '
        + _PREPARE.format(name=directory.parent.name)) from error
  finally:
    logging.getLogger('absl').setLevel('NOTSET')


def prepare(name: str):
  """As `read`, after preparing `name` in tensorflow-datasets' own directory.

  Raises:
    UserError: without TensorFlow, or where preparing fails.
  """
  try:
    import tensorflow  # noqa: F401  pylint: disable=unused-import
  except ImportError:
    raise UserError(
        '--data_dir=tfds needs TensorFlow to prepare the data set and it is '
        'not installed; pip install tensorflow, or give --data_dir=DIRECTORY '
        'to read or download the published archive') from None
  import tensorflow_datasets as tfds

  builder = tfds.builder(name, file_format='array_record')
  try:
    builder.download_and_prepare()
  except Exception as error:
    raise UserError(f'--data_dir=tfds could not prepare {name}: {error}. Give '
                    '--data_dir=DIRECTORY instead') from error
  return read(pathlib.Path(builder.data_dir))
