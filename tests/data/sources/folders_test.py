"""Folders of images: layouts, sizes and errors."""

import numpy as np
from PIL import Image
import pytest

import moon_jax as mj
from moon_jax.errors import UserError

PIXELS = np.random.RandomState(0).randint(0, 256, (10, 6, 6, 3), np.uint8)


def save(directory, *pixels, suffix='png'):
  directory.mkdir(parents=True, exist_ok=True)
  for i, x in enumerate(pixels):
    Image.fromarray(x).save(directory / f'{i}.{suffix}')


def test_clients_and_classes_are_folders(tmp_path):
  save(tmp_path / 'bob/cat', *PIXELS[:5])
  save(tmp_path / 'ann/dog', *PIXELS[5:])
  (tmp_path / 'ann/dog/notes.txt').write_text('x')
  data = mj.load_dataset('images', str(tmp_path))
  assert data.client_names == ('ann', 'bob')
  assert data.class_names == ('cat', 'dog')
  np.testing.assert_array_equal(data.train_clients, 1 - data.train_labels)
  assert np.bincount(data.test_clients).tolist() == [1, 1]
  both = [*data.train_inputs, *data.test_inputs]
  assert {x.tobytes() for x in both} == {x.tobytes() for x in PIXELS}


@pytest.mark.parametrize('train, test', [
    ('train', 'test'), ('Training', 'testing'), ('train', 'val'),
    ('train', 'Validation')])
def test_split_folders_and_grayscale(train, test, tmp_path):
  gray = PIXELS[..., 0]
  for part, i in (train, 0), (test, 2):
    save(tmp_path / part / 'a', gray[i])
    save(tmp_path / part / 'b', gray[i + 1])
  save(tmp_path / '.ipynb_checkpoints', PIXELS[0])
  data = mj.load_dataset('images', str(tmp_path))
  np.testing.assert_array_equal(data.train_inputs[..., 0], gray[:2])
  np.testing.assert_array_equal(data.test_inputs[..., 0], gray[2:4])
  assert data.train_clients is None and data.test_labels.tolist() == [0, 1]


def test_a_class_may_have_the_name_train(tmp_path):
  for name in 'bus', 'car', 'train':
    save(tmp_path / name, *PIXELS[:2])
  data = mj.load_dataset('images', str(tmp_path))
  assert data.class_names == ('bus', 'car', 'train')


def test_sizes(tmp_path):
  save(tmp_path / 'a', PIXELS[0], PIXELS[1][:4])
  save(tmp_path / 'b', PIXELS[2], PIXELS[3][:, :3])
  with pytest.raises(
      UserError, match=r'\(6, 6\).*\(6, 4\) in .*a.1.png.*size='):
    mj.load_dataset('images', str(tmp_path))
  data = mj.load_dataset('images(size=8)', str(tmp_path))
  expected = np.asarray(Image.fromarray(PIXELS[0]).resize(
      (8, 8), Image.Resampling.BILINEAR))
  assert any((x == expected).all() for x in [
      *data.train_inputs, *data.test_inputs])


@pytest.mark.parametrize('make, words', [
    (lambda here: None, 'without .png'),
    (lambda here: save(here, PIXELS[0]), 'DIR/CLASS'),
    (lambda here: (save(here / 'a', PIXELS[0]),
                   save(here / 'b/c', PIXELS[1])), 'DIR/CLASS.*b.c.0.png'),
    (lambda here: save(here / 'train/a', PIXELS[0]), 'test examples'),
    (lambda here: (save(here, PIXELS[0]), save(here / 'train/a', PIXELS[1]),
                   save(here / 'test/a', PIXELS[2])), 'DIR/CLASS.*0.png'),
    (lambda here: [save(here / top / 'a', PIXELS[0])
                   for top in ('train', 'test', 'extra')],
     'only folders test and valid; got .*/extra. Move'),
    (lambda here: [save(here / top / 'a', PIXELS[0])
                   for top in ('train', 'evaluation')],
     'only folders test and valid; got .*/evaluation. Move'),
    (lambda here: [save(here / place, PIXELS[0])
                   for place in ('train/a', 'test/a', 'test/b')],
     "only classes of training images; got 'b' in .*/test/b/0.png. Add"),
    (lambda here: (save(here / 'a', PIXELS[0]),
                   (here / 'a/9.png').write_bytes(b'x')), 'complete.*a.9.png'),
    (lambda here: (save(here / 'a', PIXELS[0]), save(here / 'a', (
        PIXELS[0, ..., 0].astype(np.uint16)), suffix='tif')),
     '8 bits.*0.tif')])
def test_errors_name_the_file(make, words, tmp_path):
  make(tmp_path)
  with pytest.raises(UserError, match=words):
    mj.load_dataset('images', str(tmp_path))


def test_a_damaged_image(tmp_path):
  save(tmp_path / 'a', *PIXELS)
  whole = (tmp_path / 'a/3.png').read_bytes()
  (tmp_path / 'a/3.png').write_bytes(whole[:len(whole) // 2])
  with pytest.raises(UserError, match='complete.*a.3.png'):
    mj.load_dataset('images', str(tmp_path))
