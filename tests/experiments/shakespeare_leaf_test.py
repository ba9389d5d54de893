"""Plays are split into roles, LEAF's clients."""

from absl import flags
import pytest

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


@pytest.fixture
def shakespeare_leaf():
  """The module, whose flags must not be in the help of other commands."""
  before = {*flags.FLAGS}
  from experiments import shakespeare_leaf

  yield shakespeare_leaf
  for name in {*flags.FLAGS} - before:
    delattr(flags.FLAGS, name)


def test_plays_are_split_into_roles(shakespeare_leaf):
  speeches = shakespeare_leaf.speeches(PLAY)
  assert speeches == {'BER': "Who's there? It is late. Long live the king!",
                  'FRAN': 'Nay, answer me.'}
  long = {'x_play': f'Ber.\n{"abcdefghij" * 50}\n\nFran.\nNay.\n'}
  train, test = shakespeare_leaf.leaf(long, stride=10, min_examples=2)
  assert train['users'] == test['users'] == ['X_PLAY_BER']
  examples = train['user_data']['X_PLAY_BER']
  assert len(examples['x']) == train['num_samples'][0] == 32  # of 400
  assert examples['x'][1] == 'abcdefghij' * 8 and examples['y'][1] == 'a'
