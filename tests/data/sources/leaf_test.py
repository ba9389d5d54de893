"""FEMNIST and Shakespeare in the format of LEAF, from tiny files."""

import json
import pathlib

import numpy as np
import pytest

from moon_jax.data import sources
from moon_jax.data.sources import leaf as leaf_lib
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
  data = sources.load_dataset('femnist', str(tmp_path))
  assert_equal_to_users(data)
  # data_to_json.py of LEAF maps 0-9, 41-5a and 61-7a (hexadecimal) in order.
  codes = [*range(0x30, 0x3a), *range(0x41, 0x5b), *range(0x61, 0x7b)]
  assert ''.join(data.class_names) == ''.join(map(chr, codes))


def test_other_users_for_testing_are_no_clients(tmp_path):
  """preprocess.sh -t user divides the users."""
  write_leaf(tmp_path, 'train', leaf({'f9_1': TRAIN['f9_1']}))
  write_leaf(tmp_path, 'test', leaf({'f0120_13': TEST['f0120_13']}))
  data = sources.load_dataset('femnist', str(tmp_path))
  assert data.test_clients is None and data.train_clients.tolist() == [0]


def changed(**changes):
  """Returns LEAF's form of user f9_1 with changed lists."""
  content = leaf({'f9_1': TRAIN['f9_1']})
  content['user_data']['f9_1'].update(changes)
  return content


IMAGE = [1.] * 784


@pytest.mark.parametrize('content, words', [
    (changed(y=[1, 2]), 'got 1 and 2 of .f9_1'),
    (changed(x=[IMAGE[1:]]), '784 numbers; got 783'),
    (changed(x=[IMAGE, IMAGE[1:]], y=[1, 2]), 'inhomogeneous'),
    (changed(x=[['a'] * 784]), 'could not convert'),
    (changed(x=[[255.] * 784]), 'pixels .* 0 to 1; got 255'),
    (changed(x=[[.5] * 784]), 'pixels .*; got 0.5'),
    (changed(x=[[float('nan')] * 784]), 'pixels .*; got nan'),
    (leaf({'f9_1': user()}), 'no user has an example'),
])
def test_damaged_files_of_leaf_raise(tmp_path, content, words):
  write_leaf(tmp_path, 'train', content, 'bad.json')
  write_leaf(tmp_path, 'test', leaf(TEST))
  with pytest.raises(UserError, match=(
      f'train/bad.json, which is not: .*{words}')) as e:
    sources.load_dataset('femnist', str(tmp_path))
  assert '\n' not in str(e.value)


# Shakespeare.

# From models/utils/language_utils.py of LEAF.
LETTERS = ("\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijkl"
           'mnopqrstuvwxyz}')


def role(*texts):
  return {'x': [text[:-1] for text in texts], 'y': [t[-1] for t in texts]}


BER, FOOL = role('abcd', 'zzz}'), role('\n !"')


def roles(**user_data):
  return {'users': list(user_data), 'num_samples': [], 'user_data': user_data}


@pytest.mark.parametrize('is_reversed', [False, True])
def test_reads_the_format_of_leaf(is_reversed, tmp_path, monkeypatch):
  """The result does not depend on the order in which files are listed."""
  glob = pathlib.Path.glob
  monkeypatch.setattr(pathlib.Path, 'glob', lambda *args: sorted(
      glob(*args), reverse=is_reversed))
  write_leaf(tmp_path, 'train', roles(HAMLET_BER=BER), 'b.json')
  write_leaf(tmp_path, 'train', roles(LEAR_FOOL=FOOL), 'a.json')
  write_leaf(tmp_path, 'test', roles(LEAR_FOOL=role('AZ01', ' a b')))
  data = sources.load_dataset('shakespeare', str(tmp_path))
  assert ''.join(leaf_lib.LETTERS) == LETTERS and len(LETTERS) == 80
  assert data.num_tokens == data.num_classes == 80
  decode = lambda codes: ''.join(LETTERS[c] for c in codes)
  texts = [decode(x) + LETTERS[y]
           for x, y in zip(data.train_inputs, data.train_labels)]
  assert texts == ['\n !"', 'abcd', 'zzz}']
  np.testing.assert_array_equal(data.train_clients, [1, 0, 0])
  assert [decode(x) for x in data.test_inputs] == ['AZ0', ' a ']


@pytest.mark.parametrize('text, words', [
    ('{"users": []}', "KeyError 'user_data'"),
    ('{"user_data": {"A": {"x": ["abc", "ab"], "y": ["d", "e"]}}}',
     'each input must have 3 .* and each label 1; got 2'),
    ('{"user_data": {"A": {"x": ["abc"], "y": ["de"]}}}', 'label 1; got 2'),
    ('{"user_data": {"A": {"x": ["a#c"], "y": ["d"]}}}', "must be .* got '#'"),
    ('{"user_data": {"A": {"x": ["a\\u20acc"], "y": ["d"]}}}', "can't encode"),
])
def test_invalid_plays_raise(tmp_path, text, words):
  write_leaf(tmp_path, 'test', roles(A=BER))
  write_leaf(tmp_path, 'train', text, 'a.json')
  with pytest.raises(UserError, match=(
      f'LEAF; got .*a.json, which is not: .*{words}')):
    leaf_lib.load_shakespeare(str(tmp_path))


def test_missing_or_inconsistent_plays_raise(tmp_path):
  with pytest.raises(UserError, match='must hold train/.*test/.*writes them'):
    leaf_lib.load_shakespeare(str(tmp_path))
  with pytest.raises(UserError, match='must hold train/.*json.*hf:flwrlabs'):
    leaf_lib.load_femnist(str(tmp_path))
  for part in 'test', 'train':
    write_leaf(tmp_path, part, roles(A=BER), 'all.json')
  write_leaf(tmp_path, 'train', roles(X=role('abcde')), 'longer.json')
  with pytest.raises(UserError, match='equal lengths; got 3 in .*/'
                     'train/all.json and 4 in .*/train/longer.json'):
    leaf_lib.load_shakespeare(str(tmp_path))
