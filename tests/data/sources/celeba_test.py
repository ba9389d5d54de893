"""CelebA as LEAF prepares it, from tiny files."""

import io
import json

import numpy as np
from PIL import Image
import platformdirs
import pytest
from tiny_files import jpeg

from moon_jax.data import sources
from moon_jax.data.io import image_folder
from moon_jax.errors import UserError

TRAIN = {'2937': (['000009.jpg', '000003.jpg'], [1.0, 0.0]),
         '10001': (['000004.jpg'], [0.0])}
TEST = {'2937': (['000001.jpg'], [0.0]), '10001': (['000002.jpg'], [1.0])}
PHOTOS = {f'{i:06}.jpg': jpeg(i, (178, 218)) for i in (1, 2, 3, 4, 7, 9)}


def write_json(root, part, users):
  (root / part).mkdir(parents=True, exist_ok=True)
  (root / part / 'all_data_niid_1_keep_5.json').write_text(json.dumps({
      'users': list(users), 'num_samples': [len(y) for _, y in users.values()],
      'user_data': {name: {'x': x, 'y': y} for name, (x, y) in users.items()}}))


def write(root, folder='raw/img_align_celeba', train=TRAIN):
  write_json(root, 'train', train)
  write_json(root, 'test', TEST)
  (root / folder).mkdir(parents=True)
  for name, blob in PHOTOS.items():
    (root / folder / name).write_bytes(blob)
  return root


@pytest.fixture
def root(tmp_path, monkeypatch):
  monkeypatch.setattr(platformdirs, 'user_cache_dir',
                      lambda name: str(tmp_path / 'cache'))
  return tmp_path / 'data'


def resized(name):
  """Returns the photo as LEAF's cnn.py loads it, with today's Pillow."""
  image = Image.open(io.BytesIO(PHOTOS[name]))
  return np.array(image.resize((84, 84)).convert('RGB'))


@pytest.mark.parametrize('folder', ['raw/img_align_celeba', 'img_align_celeba'])
def test_reads_the_format_of_leaf(root, folder):
  data = sources.load('celeba', str(write(root, folder)))
  assert data.train_inputs.shape == (3, 84, 84, 3)
  for images, clients, labels, users in (
      (data.train_inputs, data.train_clients, data.train_labels, TRAIN),
      (data.test_inputs, data.test_clients, data.test_labels, TEST)):
    for client, user in enumerate(('10001', '2937')):  # sorted by name
      files, y = users[user]
      np.testing.assert_array_equal(
          images[clients == client], [resized(file) for file in files])
      assert labels[clients == client].tolist() == y
  assert data.class_names == ('no', 'yes')


def test_photos_are_decoded_once(root, monkeypatch, capsys):
  first = sources.load('celeba', str(write(root)))
  assert 'cached the decoded images of CelebA' in capsys.readouterr().out
  monkeypatch.delattr(image_folder, '_pixels')
  again = sources.load('celeba', str(root))
  assert again.fingerprint() == first.fingerprint()


@pytest.mark.parametrize('user, words', [
    ((['000008.jpg'], [1]), "user '7' has '000008.jpg', which is not in .*raw"),
    ((['../raw/img_align_celeba/000001.jpg'], [1]), "user '7' has '../raw"),
    (([3], [1]), "user '7' has 3, which"),
    ((['000001.jpg'], [2]), "user '7': labels must be 0 or 1; got 2"),
    ((['000001.jpg'], ['1']), "user '7': labels must be 0 or 1; got '1'"),
    ((['000001.jpg'], [1, 0]), "got 1 and 2 of '7'"),
])
def test_damaged_files_of_leaf_raise(root, user, words):
  write(root, train=TRAIN | {'7': user})
  with pytest.raises(UserError, match=f'train/all_data.*json is not .*{words}'):
    sources.load('celeba', str(root))


def test_missing_and_damaged_photos_raise(root):
  root.mkdir()
  with pytest.raises(UserError, match='must hold raw/img_align_celeba/ or'):
    sources.load('celeba', str(root))
  write(root)
  path = root / 'raw/img_align_celeba/000003.jpg'
  for damaged in PHOTOS['000003.jpg'][:-3000], b'not a photo':
    path.write_bytes(damaged)
    with pytest.raises(UserError, match='000003.jpg must be a complete JPEG'):
      sources.load('celeba', str(root))
