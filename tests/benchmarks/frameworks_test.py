"""The comparison with other frameworks: its counts, and moon_jax's programs."""

import shlex

import pytest

from benchmarks.frameworks import count
from benchmarks.frameworks import make_data
from moon_jax.config import Config
from moon_jax.sweep import command as sweep_command
from moon_jax.training import run

OURS = count.HERE / 'with_moon_jax'
PROGRAMS = count.tasks()['programs']
SOURCE = '''"""A docstring
of two lines."""
from a import b  # counts
from a import c  # in the line above

import d


class E:
  """A docstring."""

  # A comment.
  x = (1,
       2)

  def f(self):
    """A docstring."""
    return """a text
of two lines"""
'''


@pytest.fixture
def data(tmp_path):
  make_data.write(tmp_path / 'mine.npz')
  return tmp_path / 'mine.npz'


def config(command, **changes):
  """Returns the Config of a `moon-jax train` command."""
  words = shlex.split(command)
  assert words[:2] == ['moon-jax', 'train']
  given = dict(word.removeprefix('--').split('=', 1) if '=' in word else
               (word.removeprefix('--no'), '') for word in words[2:])
  kinds = {name: type(getattr(Config(), name)) for name in given}
  return Config(**{name: kinds[name](value) for name, value in given.items()}
                | changes)


def test_the_tables_of_the_page_are_current():
  text = count.DOCUMENT.read_text(encoding='utf-8')
  assert count.with_tables(text) == text


def test_statements_are_counted_and_text_is_not():
  logical, text = count.python_lines(SOURCE)
  assert logical == 6  # from, import, class, x, def, return
  assert len(text) == 8 and 'of two lines"""' in text


def test_options_are_words_with_a_dash():
  program = {'files': [], 'commands': ['a b --c=1 -d "e -f"', 'g']}
  found = count.counts('moon_jax', program)
  assert (found['commands'], found['options'], found['logical']) == (2, 2, 0)


def test_a_changed_program_counts_as_not_run(monkeypatch):
  program = PROGRAMS['moon_jax']['model']
  result = {'passed': True, 'sha256': count.digest('moon_jax', program)}
  monkeypatch.setattr(
      count, 'checked', lambda: {'moon_jax': {'tasks': {'model': result}}})
  assert count.is_checked('moon_jax', 'model', program)
  changed = program | {'commands': [program['commands'][0] + ' --quiet']}
  assert not count.is_checked('moon_jax', 'model', changed)
  result['passed'] = False
  assert not count.is_checked('moon_jax', 'model', program)


def test_every_file_of_a_program_exists_and_is_listed():
  for framework, programs in PROGRAMS.items():
    listed = {path for program in programs.values()
              for path in count.paths(framework, program)}
    folder = count.HERE / f'with_{framework}'
    assert listed == {path for path in folder.rglob('*')
                      if path.suffix in ('.py', '.toml')}


@pytest.mark.parametrize('task', ['npz', 'feddyn', 'model'])
def test_our_programs_learn(task, data, tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(OURS)
  (command,) = PROGRAMS['moon_jax'][task]['commands']
  summary = run.run(config(command, data_dir=str(data), checkpoint_every=0,
                           workdir=str(tmp_path / 'run')))
  assert summary['test_accuracy'] > .5


def test_moon_written_by_the_user_equals_ours(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(OURS)
  small = {'dataset': 'digits', 'data_dir': '', 'model': 'mlp',
           'num_clients': 3, 'num_rounds': 3, 'local_epochs': 1,
           'learning_rate': .1, 'checkpoint_every': 0}
  losses = []
  for task in 'moon_shipped', 'moon':
    (command,) = PROGRAMS['moon_jax'][task]['commands']
    summary = run.run(config(
        command, workdir=str(tmp_path / task), **small))
    losses.append(summary['test_loss'])
  assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_our_resumed_run_is_the_same_command():
  first, second = PROGRAMS['moon_jax']['resume']['commands']
  assert first == second and config(first).checkpoint_every == 1


def test_our_sweep_has_nine_runs(data):
  train, report = PROGRAMS['moon_jax']['sweep']['commands']
  words = shlex.split(train)[2:]
  grids = [word.removeprefix('--grid=') for word in words
           if word.startswith('--grid=')]
  flags = [word for word in words if not word.startswith('--grid=')]
  fields = config('moon-jax train ' + shlex.join(flags), data_dir=str(data))
  sweep = sweep_command.build(fields, flags, grids, '').sweep
  assert len(sweep.configs) == 9 and report == 'moon-jax report runs'
