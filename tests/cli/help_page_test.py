"""--help lists each flag once, below its topic; its examples are valid."""

import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from moon_jax.cli import help_page
from moon_jax.config import Config, TOPICS

_ROOT = pathlib.Path(__file__).parents[2]
_COMMANDS = 'train', 'sweep', 'report', 'plan'
_FIELDS = [field.name for field in dataclasses.fields(Config)]


def run(*words, columns=''):
  """Runs Python in a process of its own."""
  env = os.environ | ({'COLUMNS': columns} if columns else {})
  done = subprocess.run(
      [sys.executable, *words], text=True, capture_output=True, timeout=60,
      check=False, cwd=_ROOT, env=env)
  assert done.returncode == 0, done.stderr
  return done


@pytest.fixture
def output(quick):
  """Returns a function that runs a module and returns what it prints."""
  def output(module, *words):
    done = quick.run(*words, cwd=_ROOT, module=module)
    assert done.status == 0, done.err
    return done.out

  return output


def flags_of(text):
  return re.findall(r'^  --(?:\[no\])?(\w+)', text, re.M)


@pytest.mark.parametrize('command, own', [
    ('train', ['coordinator_address', 'num_processes', 'process_id']),
    ('sweep', ['grid', 'sweep', 'dry_run', 'max_runs', 'part']),
    ('report', ['budget', 'train', 'runs', 'out', 'dry_run']),
    ('plan', ['devices', 'processes', 'gbit', 'seconds_per_row',
              'seconds_per_job', 'target']),
])
def test_help_lists_each_flag_once(command, own, output):
  text = output('moon_jax', command, '--help')
  expected = _FIELDS + own if command == 'train' else own + _FIELDS
  assert flags_of(text) == expected
  titles = re.findall(r'^(\w.*):$', text, re.M)
  assert [title for title in titles if title in TOPICS] == list(TOPICS)
  assert titles[-1] == 'Examples'
  assert text.startswith(f'usage: moon-jax {command} ')
  assert 'Whether' not in text


def test_topics_are_the_bases_of_the_configuration():
  assert {*Config.__bases__} == {*TOPICS.values()}
  assert _FIELDS == [field.name for topic in TOPICS.values()
                     for field in dataclasses.fields(topic)]


def test_the_tables_of_the_page_are_those_of_the_flags():
  """`python -m moon_jax.cli.help_page docs/flags.md` writes them."""
  page = (_ROOT / 'docs' / 'flags.md').read_text(encoding='utf-8')
  assert help_page.tables(page) == page
  assert help_page.tables(page.replace('| `--lanes` |', '| `--lane` |')) == page


def test_the_short_help_is_short(output):
  text = output('moon_jax.train', '-h')
  assert 12 <= len(flags_of(text)) <= 16
  assert {'dataset', 'algorithm', 'num_rounds', 'workdir'} <= {*flags_of(text)}
  assert text.count('\n') < 70 and '--help lists all' in text


@pytest.mark.parametrize('columns', ['', '72', '140'])
def test_lines_fit_the_terminal(columns):
  text = run('-m', 'moon_jax.train', '--help', columns=columns).stdout
  body, _, _ = text.partition('\nExamples:')
  width = int(columns or 80)
  longest = max(body.splitlines(), key=len)
  assert 0.9 * width < len(longest) <= width, longest


@pytest.mark.parametrize('command', _COMMANDS)
@pytest.mark.parametrize('prefix', ['moon_jax.', 'moon_jax '])
def test_examples_are_valid_commands(command, prefix, output):
  text = output(*f'{prefix}{command}'.split(), '-h')
  examples = re.findall(r'^  (?:moon-jax|python -m) (.*)$',
                        text.partition('\nExamples:')[2], re.M)
  assert len(examples) >= 2
  for example in examples:
    words = shlex.split(example)
    called = [f'moon_jax.{command}'] if prefix == 'moon_jax.' else [
        'moon_jax', command]
    assert words[0] == called[-1]
    output(*called, *words[1:], '--only_check_args')


@pytest.mark.parametrize('command', _COMMANDS)
def test_help_does_not_import_jax(command):
  times = run('-X', 'importtime', '-m', 'moon_jax', command, '--help').stderr
  imported = set(re.findall(r'\| +([\w.]+)$', times, re.M))
  assert 'moon_jax.cli.help_page' in imported
  assert not {'jax', 'jaxlib', 'tensorflow', 'flax', 'scipy', 'sklearn'} & (
      imported)


def test_heads_show_defaults_and_choices(output):
  text = output('moon_jax.train', '--help')
  for head in ('--num_rounds=100 ', '--weight_decay=1e-5 ', '--workdir=DIR ',
               '--optimizer=sgd|adam|amsgrad\n', '--[no]augment ',
               '--participation=1 ', '--coordinator_address=HOST:PORT\n'):
    assert f'  {head}' in text
  assert text.count('Default: on.') == sum(
      field.default is True for field in dataclasses.fields(Config))


def test_the_default_is_the_first_of_the_choices():
  entry = help_page._entry('x', 'b', 'Text.', ('a', 'b', 'c'), '', True)
  assert entry == ('--x=b|a|c', 'Text.')
