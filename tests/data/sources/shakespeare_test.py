"""Shakespeare in the format of LEAF, from synthetic files."""

import json
import pathlib

import numpy as np
import pytest

from experiments import shakespeare_leaf
from moon_jax.data import sources
from moon_jax.data.sources import leaf
from moon_jax.errors import UserError

# From models/utils/language_utils.py of LEAF.
LETTERS = ("\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijkl"
           'mnopqrstuvwxyz}')
PLAY = '''
THE TRAGEDY

ACT I.

Ber.
Who's there?   [Enter Ghost.]
It is late.

Fran.
Nay, answer me.

[Exit.]

Ber.
Long live the king!

Scene II.
A room.
'''


def user(*texts):
  return {'x': [text[:-1] for text in texts], 'y': [t[-1] for t in texts]}


USERS = {'HAMLET_BER': user('abcd', 'zzz}'), 'LEAR_FOOL': user('\n !"')}


def write(root, part, users, name='all.json'):
  (root / part).mkdir(exist_ok=True)
  (root / part / name).write_text(json.dumps({
      'users': list(users), 'num_samples': [], 'user_data': users}))


@pytest.mark.parametrize('is_reversed', [False, True])
def test_reads_the_format_of_leaf(is_reversed, tmp_path, monkeypatch):
  """The result does not depend on the order in which files are listed."""
  glob = pathlib.Path.glob
  monkeypatch.setattr(pathlib.Path, 'glob', lambda *args: sorted(
      glob(*args), reverse=is_reversed))
  write(tmp_path, 'train', {'HAMLET_BER': USERS['HAMLET_BER']}, 'b.json')
  write(tmp_path, 'train', {'LEAR_FOOL': USERS['LEAR_FOOL']}, 'a.json')
  write(tmp_path, 'test', {'LEAR_FOOL': user('AZ01', ' a b')})
  data = sources.load('shakespeare', str(tmp_path))
  assert ''.join(leaf.LETTERS) == LETTERS and len(LETTERS) == 80
  assert data.num_tokens == data.num_classes == 80
  decode = lambda codes: ''.join(LETTERS[c] for c in codes)
  texts = [decode(x) + LETTERS[y]
           for x, y in zip(data.train_inputs, data.train_labels)]
  assert texts == ['\n !"', 'abcd', 'zzz}']
  np.testing.assert_array_equal(data.train_clients, [1, 0, 0])
  assert [decode(x) for x in data.test_inputs] == ['AZ0', ' a ']


@pytest.mark.parametrize('text, words', [
    ('{"user_data": {"A": {"x": ["abc"], "y": ["d"]}', 'JSONDecodeError'),
    ('[1, 2]', 'TypeError'),
    ('{"users": []}', "KeyError 'user_data'"),
    ('{"user_data": {"A": {"x": ["abc"]}}}', "KeyError 'y'"),
    ('{"user_data": {"A": [1]}}', 'TypeError'),
    ('{"user_data": {"A": {"x": [1], "y": ["d"]}}}', 'TypeError'),
    ('{"user_data": {}}', 'no user has an example'),
    ('{"user_data": {"A": {"x": ["abc", "abc"], "y": ["d"]}}}',
     'equal numbers .* got 2 and 1 of .A.'),
    ('{"user_data": {"A": {"x": ["abc", "ab"], "y": ["d", "e"]}}}',
     'each input must have 3 .* and each label 1; got 2 and 1 of .A.'),
    ('{"user_data": {"A": {"x": ["abc"], "y": ["de"]}}}',
     'each label 1; got 3 and 2 of .A.'),
    ('{"user_data": {"A": {"x": ["a#c"], "y": ["d"]}}}', "must be .* got '#'"),
    ('{"user_data": {"A": {"x": ["a\\u20acc"], "y": ["d"]}}}', 'Unicode'),
    ('[' * 100_000, 'RecursionError|JSONDecodeError'),
])
def test_invalid_files_raise(tmp_path, text, words):
  write(tmp_path, 'test', USERS)
  (tmp_path / 'train').mkdir()
  (tmp_path / 'train' / 'a.json').write_text(text)
  with pytest.raises(
      UserError, match=f'a.json is not in the form.*({words})') as e:
    leaf.load_shakespeare(str(tmp_path))
  assert str(e.value).count('\n') == 0


def test_missing_or_inconsistent_files_raise(tmp_path):
  for root in ('', str(tmp_path)):
    with pytest.raises(UserError, match='must hold train/.*test/.*writes them'):
      leaf.load_shakespeare(root)
  write(tmp_path, 'test', USERS)
  write(tmp_path, 'train', USERS)
  write(tmp_path, 'train', {'X': user('abcde')}, 'longer.json')
  with pytest.raises(UserError, match='equal lengths, got 3 characters in .*/'
                     'train/all.json and 4 in .*/train/longer.json'):
    leaf.load_shakespeare(str(tmp_path))


def test_plays_are_split_into_roles():
  speeches = shakespeare_leaf.speeches(PLAY)
  assert speeches == {'BER': "Who's there? It is late. Long live the king!",
                  'FRAN': 'Nay, answer me.'}
  long = {'x_play': f'Ber.\n{"abcdefghij" * 50}\n\nFran.\nNay.\n'}
  train, test = shakespeare_leaf.leaf(long, stride=10, min_examples=2)
  assert train['users'] == test['users'] == ['X_PLAY_BER']
  examples = train['user_data']['X_PLAY_BER']
  assert len(examples['x']) == train['num_samples'][0] == 32  # of 400
  assert examples['x'][1] == 'abcdefghij' * 8 and examples['y'][1] == 'a'
