"""CelebA as LEAF prepares it: is the celebrity of a photo smiling?

Liu et al., Deep Learning Face Attributes in the Wild,
https://arxiv.org/abs/1411.7766; Caldas et al., LEAF,
https://arxiv.org/abs/1812.01097. Clients are the 9,343 celebrities with five
photos or more. `--data_dir` is the directory data/celeba/data of LEAF after
`preprocess.sh -s niid --sf 1.0 -k 5 -t sample`:

    train/*.json, test/*.json    {"user_data": {celebrity: {
                                     "x": [file, ...], "y": [0 or 1, ...]}}}
    raw/img_align_celeba/*.jpg   the aligned photos, or img_align_celeba/*.jpg

As in LEAF's models/celeba/cnn.py, photos are resized to 84x84 pixels; the
filter is bicubic, today's default of Pillow. The first run decodes them and
caches them in one file of 4.2 GB (`moon_jax.data.io.image_folder`).
"""

import pathlib
from typing import Any

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.data.io import image_folder
from moon_jax.data.io import leaf
from moon_jax.data.io.files import FileTree
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError

_SIZE = 84
_FOLDER = 'img_align_celeba'
_REMEDY = ('Unpack img_align_celeba.zip of https://mmlab.ie.cuhk.edu.hk/projects'
           '/CelebA.html into raw/')


def load(data_dir: str) -> Dataset:
  """Reads the files; images are uint8 [N, 84, 84, 3].

  Raises:
    UserError: if files are missing or damaged.
  """
  root = files.existing_directory(
      'celeba', 'CelebA', data_dir, "LEAF's train/*.json and test/*.json, and "
      f'raw/{_FOLDER}/*.jpg', False).absolute()
  tree = _photos(root)
  loaded: dict[str, Any] = leaf.load(
      data_dir, 'celeba', 'run preprocess.sh of LEAF in data/celeba',
      lambda user_data: _convert(user_data, tree))
  names = np.concatenate([loaded['x_train'], loaded['x_test']])
  images = image_folder.load(
      tree, names.tolist(), _SIZE, 'CelebA', 'celeba', resize=True)
  num_train = len(loaded['x_train'])
  return arrays.to_dataset('celeba', f'--data_dir={data_dir}', loaded | {
      # A copy, so that test examples do not keep all images in memory.
      'x_train': images[:num_train], 'x_test': images[num_train:].copy(),
      'mean': .5, 'std': .5, 'class_names': ['no', 'yes']})


def _photos(root: pathlib.Path) -> FileTree:
  for directory in root / 'raw', root:
    if (directory / _FOLDER).is_dir():
      return files.directory_tree(directory, (_FOLDER,), _REMEDY)
  raise UserError(f'--data_dir: {root} must hold raw/{_FOLDER}/ or {_FOLDER}/ '
                  f'with the photos of CelebA. {_REMEDY}')


def _convert(user_data: leaf.UserData,
             tree: FileTree) -> tuple[np.ndarray, np.ndarray]:
  """Returns the names in `tree` and the labels of the photos of a file."""
  names, labels = [], []
  for user, examples in user_data.items():
    for file, label in zip(examples['x'], examples['y']):
      name = f'{_FOLDER}/{file}'
      if name not in tree.stamps:
        raise leaf.Invalid(
            f'user {user!r:.60} has {file!r:.60}, which is not in '
            f'{tree.path / _FOLDER}')
      if label not in (0, 1):  # metadata_to_json.py writes floats
        raise leaf.Invalid(f'user {user!r:.60}: labels must be 0 or 1; got '
                           f'{label!r:.60}')
      names.append(name)
      labels.append(int(label))
  return np.array(names), np.array(labels)
