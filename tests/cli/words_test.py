"""Flags that the method ignores, on the command line and in flag files."""

from absl import flags
import pytest

from moon_jax.algorithms import unused
from moon_jax.cli import words as words_lib
from moon_jax.config import Config
from moon_jax.errors import UserError


def check(words, **fields):
  words_lib.check(Config(**fields), words_lib.read(words))


@pytest.fixture(autouse=True)
def parsed(monkeypatch):
  """absl reads flag files only with flags that were parsed."""
  monkeypatch.setattr(flags, 'FLAGS', flags.FlagValues())
  flags.DEFINE_string('algorithm', 'moon', '', flag_values=flags.FLAGS)
  flags.FLAGS(['command'])


@pytest.mark.parametrize('words, fields, message', [
    (['--algorithm=fednova', '--contrastive=l2'],
     dict(algorithm='fednova', contrastive='l2'),
     '--contrastive=l2 has no effect with --algorithm=fednova; remove it'),
    (['--num_negatives', '3', '--algorithm', 'fedavg'],
     dict(algorithm='fedavg', num_negatives=3), '--num_negatives=3 has no'),
    (['-mu=5'], dict(algorithm='scaffold', mu=5.), '--mu=5.0 has no effect'),
    (['--norm=group'], dict(model='mine:Net', norm='group'),
     '--norm=group has no effect with --model=mine:Net; remove it'),
    (['--contrastive=l2', '--temperature=.4'],
     dict(contrastive='l2', temperature=.4),
     '--temperature=0.4 has no effect with --algorithm=moon --contrastive=l2'),
])
def test_flags_without_effect_are_refused(words, fields, message):
  with pytest.raises(UserError, match=message):
    check(words, **fields)


@pytest.mark.parametrize('words, fields', [
    (['--algorithm=fedavg', '--num_negatives=1'], dict(algorithm='fedavg')),
    (['--mu=0.1'], dict(algorithm='fedprox', mu=.1)),
    (['--mu=.1'], dict(algorithm='mine:make', mu=.1)),
    (['--contrastive=l2', '--mu=.1'], dict(contrastive='l2', mu=.1)),
    (['--flagfile=moon.flags', '--algorithm=fedavg'],
     dict(algorithm='fedavg', mu=5., num_negatives=4)),
])
def test_other_flags_are_accepted(words, fields, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'moon.flags').write_text('--mu=5\n--num_negatives=4\n')
  check(words, **fields)


@pytest.mark.parametrize('file, algorithm, is_refused', [
    ('--algorithm=moon\n--mu=5\n', 'fedprox', True),
    ('--mu=5\n', 'fedprox', True),  # moon is the default
    ('--algorithm=fedprox\n--mu=5\n', 'fedprox', False),
    ('--algorithm=moon\n--mu=5\n', 'moon', False),
    ('# --algorithm=fedprox\n--mu=5\n', 'moon', False)])
@pytest.mark.parametrize('form', ['--flagfile={}', '--flagfile {}'])
def test_a_mu_in_a_flag_file_is_for_its_algorithm(
    file, algorithm, is_refused, form, tmp_path):
  (tmp_path / 'a.flags').write_text(file)
  words = [*form.format(tmp_path / 'a.flags').split(),
           f'--algorithm={algorithm}']
  fields = dict(algorithm=algorithm, mu=5.)
  if is_refused:
    with pytest.raises(UserError, match=(
        '--mu=5.0 in the flag file is for --algorithm=moon; give --mu for '
        '--algorithm=fedprox, or --mu=-1 for its default of 0.01')):
      check(words, **fields)
  else:
    check(words, **fields)
  check([*words, '--mu=-1'], **fields | {'mu': -1.})
  check([*words, '--mu=5'], **fields)


def test_names_are_those_of_flags():
  words = ['--noaugment', '-mu', '-1', '--beta=0.5', 'x']
  assert words_lib.names(words) >= {'augment', 'mu', 'beta'}


def test_byte_order_marks_of_flag_files_are_ignored(tmp_path):
  for i, text in enumerate(('--mu=1\n--beta=2\n', '# comment\n--mu=1\n', '\n',
                            f'--flagfile={tmp_path}/2\n--mu=1\n')):
    (tmp_path / str(i)).write_text(text, encoding='utf-8-sig')
  expand = lambda i: words_lib.read(
      [f'--flagfile={tmp_path}/{i}', '--a']).expanded
  assert expand(0) == ['--mu=1', '--beta=2', '--a']
  assert expand(1) == ['--mu=1', '--a'] and expand(2) == ['--a']
  assert words_lib.read(expand(3)).expanded == ['--mu=1', '--a']
  assert words_lib.read(['#', '--b']).expanded == ['#', '--b']


def test_ignored_flags_differ_from_their_default():
  assert not unused.ignored(Config())
  assert list(unused.ignored(Config(
      algorithm='fedavg', mu=5., num_negatives=2))) == ['mu', 'num_negatives']
  assert not unused.ignored(Config(algorithm='fedavg', mu=0.))
