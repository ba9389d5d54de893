"""FEMNIST in the format of LEAF, from tiny files."""

import json

import numpy as np
import pytest

from moon_jax.data import sources
from moon_jax.errors import UserError

_random = np.random.RandomState(0)


def user(*labels):
  """Returns bytes of images, with all values, and their labels."""
  pixels = _random.randint(0, 256, (len(labels), 28, 28)).astype(np.uint8)
  if len(labels):
    pixels[0].flat[:256] = np.arange(256)
  return pixels, list(labels)


# Not sorted by name, as in LEAF's files.
TRAIN = {'f3795_00': user(5, 61, 10), 'f0120_13': user(0, 36), 'f9_1': user(9)}
TEST = {'f0120_13': user(35), 'f9_1': user(1, 2)}
SORTED = ['f0120_13', 'f3795_00', 'f9_1']


def leaf(users):
  """Returns what LEAF's data_to_json.py and split_data.py write."""
  return {'users': list(users), 'num_samples': [len(y) for _, y in
                                                users.values()],
          'user_data': {name: {'x': (x.reshape(-1, 784) / 255).tolist(), 'y': y}
                        for name, (x, y) in users.items()}}


def write_leaf(root, part, content, name='all_data_0_niid_0_keep_64.json'):
  (root / part).mkdir(parents=True, exist_ok=True)
  text = content if isinstance(content, str) else json.dumps(content)
  (root / part / name).write_text(text)


def of_client(data, part, client):
  inputs, labels, clients = (getattr(data, f'{part}_{field}')
                             for field in ('inputs', 'labels', 'clients'))
  return inputs[clients == client][..., 0], labels[clients == client].tolist()


def assert_equal_to_users(data):
  assert data.train_inputs.dtype == np.uint8
  assert data.train_inputs.shape == (6, 28, 28, 1)
  for part, users in (('train', TRAIN), ('test', TEST)):
    for client, name in enumerate(SORTED):
      images, labels = of_client(data, part, client)
      if name in users:
        np.testing.assert_array_equal(images, users[name][0])
      assert labels == (users[name][1] if name in users else [])
  assert data.mean == (0.,) and data.std == (1.,)


def test_reads_leaf(tmp_path):
  first = {name: TRAIN[name] for name in ('f3795_00', 'f9_1')}
  write_leaf(tmp_path, 'train', leaf(first))
  write_leaf(tmp_path, 'train', leaf({'f0120_13': TRAIN['f0120_13'],
                                      'f7_7': user()}), 'all_data_1.json')
  write_leaf(tmp_path, 'test', leaf(TEST))
  data = sources.load('femnist', str(tmp_path))
  assert_equal_to_users(data)
  # data_to_json.py of LEAF maps 0-9, 41-5a and 61-7a (hexadecimal) in order.
  codes = [*range(0x30, 0x3a), *range(0x41, 0x5b), *range(0x61, 0x7b)]
  assert ''.join(data.class_names) == ''.join(map(chr, codes))


def test_other_users_for_testing_are_no_clients(tmp_path):
  """preprocess.sh -t user divides the users."""
  write_leaf(tmp_path, 'train', leaf({'f9_1': TRAIN['f9_1']}))
  write_leaf(tmp_path, 'test', leaf({'f0120_13': TEST['f0120_13']}))
  data = sources.load('femnist', str(tmp_path))
  assert data.test_clients is None and data.train_clients.tolist() == [0]


def changed(**changes):
  """Returns LEAF's form of user f9_1 with changed lists."""
  content = leaf({'f9_1': TRAIN['f9_1']})
  content['user_data']['f9_1'].update(changes)
  return content


IMAGE = [1.] * 784


@pytest.mark.parametrize('content, words', [
    (changed(y=[1, 2]), 'got 1 and 2 of .f9_1'),
    (changed(x=[IMAGE[1:]]), r'user .f9_1.: .*784 numbers; got .* \[1, 783\]'),
    (changed(x=[IMAGE, IMAGE[1:]], y=[1, 2]), 'user .f9_1.: .*inhomogeneous'),
    (changed(x=[['a'] * 784]), 'user .f9_1.: .*784 numbers; got <U1'),
    (changed(x=[[255.] * 784]), 'user .f9_1.: pixels .* 0 to 1; got 255'),
    (changed(x=[[-1.] * 784]), 'user .f9_1.: pixels .*; got -1'),
    (changed(x=[[.5] * 784]), 'user .f9_1.: pixels .*; got 0.5'),
    (changed(x=[[float('nan')] * 784]), 'user .f9_1.: pixels .*; got nan'),
    (changed(y=[62]), 'user .f9_1.: labels .* 0 to 61; got int64 from 62'),
    (changed(y=[-1]), 'user .f9_1.: labels .* from -1'),
    (changed(y=[1.5]), 'user .f9_1.: labels .*float'),
    (changed() | {'users': ['f9_1', 'f8_8']}, 'lists .f8_8., which .* lacks'),
    (json.dumps(changed())[:-50], 'JSONDecodeError'),
    (leaf({'f9_1': user()}), 'no user has an example'),
])
def test_damaged_files_of_leaf_raise(tmp_path, content, words):
  write_leaf(tmp_path, 'train', content, 'bad.json')
  write_leaf(tmp_path, 'test', leaf(TEST))
  with pytest.raises(UserError, match=f'train/bad.json is not .*{words}') as e:
    sources.load('femnist', str(tmp_path))
  assert '\n' not in str(e.value)


def test_missing_files_raise(tmp_path):
  with pytest.raises(UserError, match='--data_dir=/no/such is not a directory'):
    sources.load('femnist', '/no/such')
  with pytest.raises(UserError, match='must hold train/.*json.*hf:flwrlabs'):
    sources.load('femnist', str(tmp_path))
