"""--help lists each flag once, below its topic; its examples are valid."""

import dataclasses
import os
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from moon_jax.cli import help_page
from moon_jax.config import Config, KINDS, PARTS, parts, TOPICS
from support import inline, ROOT
from support.docs_pages import sweep_of

_FIELDS = [field.name for field in dataclasses.fields(Config)]
_OWN = ['recipe', 'grid', 'dry_run', 'measure', 'target', 'devices',
        'max_runs', 'part', 'tune', 'search', 'tune_seeds',
        'coordinator_address', 'num_processes', 'process_id']


def output(module, *words):
  """Returns what a module prints."""
  done = inline.run(*words, cwd=ROOT, module=module)
  assert done.status == 0, done.err
  return done.out


def flags_of(text):
  return re.findall(r'^  --(?:\[no\])?(\w+)', text, re.M)


def test_help_lists_each_flag_once():
  text = output('moon_jax', 'train', '--help')
  assert flags_of(text) == _FIELDS + _OWN
  titles = re.findall(r'^(\w.*):$', text, re.M)
  assert [title for title in titles if title in TOPICS] == list(TOPICS)
  assert titles[-1] == 'Examples'
  assert text.startswith('usage: moon-jax train ')
  assert 'Whether' not in text
  assert 'Number of communication rounds.' in output(
      'moon_jax', 'train', '--helpfull')


def test_the_tables_of_the_page_are_those_of_the_flags():
  """`python docs/site/flag_tables.py` writes them."""
  tables = runpy.run_path(str(ROOT / 'docs/site/flag_tables.py'))['tables']
  page = (ROOT / 'docs' / 'flags.md').read_text(encoding='utf-8')
  assert tables(page) == page
  assert tables(page.replace('| `--lanes` |', '| `--lane` |')) == page
  assert all(page.count(f'\n| `--{name}` |') == 1 for name in _FIELDS)


def test_the_short_help_is_short():
  text = output('moon_jax.train', '-h')
  assert 12 <= len(flags_of(text)) <= 16
  assert {'dataset', 'algorithm', 'num_rounds', 'workdir'} <= {*flags_of(text)}
  assert text.count('\n') < 70 and '--help lists all' in text


def test_examples_are_valid_commands(monkeypatch):
  monkeypatch.chdir(ROOT)
  text = output('moon_jax', 'train', '-h')
  examples = re.findall(r'^  moon-jax train (.*)$',
                        text.partition('\nExamples:')[2], re.M)
  assert len(examples) >= 2
  for example in examples:
    assert sweep_of(shlex.split(example)).sweep.configs


@pytest.mark.parametrize('columns', ['', '140'])
def test_lines_fit_the_terminal_and_jax_is_not_imported(columns):
  done = subprocess.run(
      [sys.executable, '-X', 'importtime', '-m', 'moon_jax', 'train', '--help'],
      text=True, capture_output=True, timeout=60, check=True, cwd=ROOT,
      env=os.environ | ({'COLUMNS': columns} if columns else {}))
  body, _, _ = done.stdout.partition('\nExamples:')
  width = int(columns or 80)
  longest = max(body.splitlines(), key=len)
  assert 0.9 * width < len(longest) <= width, longest
  imported = set(re.findall(r'\| +([\w.]+)$', done.stderr, re.M))
  assert 'moon_jax.cli.help_page' in imported
  assert not {'jax', 'jaxlib', 'tensorflow', 'flax', 'scipy', 'sklearn'} & (
      imported)


def test_heads_show_defaults_and_choices():
  text = output('moon_jax.train', '--help')
  for head in ('--num_rounds=100 ', '--learning_rate=0.01 ', '--workdir=DIR ',
               '--optimizer=sgd ', '--[no]augment ',
               '--last_batch=drop|keep ', '--algorithm=moon ',
               '--participation=1 ', '--coordinator_address=HOST:PORT\n'):
    assert f'  {head}' in text
  assert text.count('Default: on.') == sum(
      field.default is True for field in dataclasses.fields(Config))
  entry = help_page._entry('x', 'b', 'Text.', ('a', 'b', 'c'), '', True)
  assert entry == ('--x=b|a|c', 'Text.')


def test_help_of_parts():
  """It lists all functions of a part, or all arguments of one."""
  for kind in (*PARTS, 'dataset', 'tune'):
    text = output('moon_jax', 'train', '--help', kind)
    assert re.findall(r'^  (\w+)(?: |$)', text, re.M) == [
        *KINDS[kind].functions]
    assert max(map(len, text.splitlines())) <= 80
  for words in (['--help', 'algorithm.moon'], ['--help=algorithm.moon'],
                ['--seed=1', '-h', 'algorithm.moon'],
                ['--help', 'algorithm=moon(mu=1)']):
    text = output('moon_jax', 'train', *words)
    assert re.findall(r'^  (\w+)=', text, re.M) == [
        *parts.schema('algorithm', 'moon')]
    assert '  mu=5 ' in text and '(at least 0)' in ' '.join(text.split())
  assert 'It has no arguments' in output(
      'moon_jax', 'train', '--help', 'algorithm.fedavg')


@pytest.mark.parametrize('kind', [*PARTS, 'dataset', 'tune'])
def test_help_of_all_functions(kind):
  for name in KINDS[kind].functions:
    text = help_page.show_part(f'{kind}.{name}', 80)
    known = parts.schema(kind, name)
    assert re.findall(r'^  (\w+)=', text, re.M) == [*known]
    assert re.findall(r'^  (\w+)=VALUE\b', text, re.M) == [
        key for key, x in known.items() if x.is_required]
    assert not any(line.endswith(' ') for line in text.splitlines())


def test_help_of_parts_in_a_narrow_terminal(capsys, monkeypatch):
  """It is as wide as in one of 50 columns, as the help of all flags is."""
  page = help_page.Page('A command.', (), 'Flags of the command')
  texts = []
  for columns in '50', '20':
    monkeypatch.setenv('COLUMNS', columns)
    for words in ['--help', 'rounds'], ['--help', 'rounds.fedbuff']:
      with pytest.raises(SystemExit):
        help_page.answer(words, page, 'command')
    texts.append(capsys.readouterr().out)
  assert texts[0] == texts[1] and 'concurrency=VALUE' in texts[0]


@pytest.mark.parametrize('name, message', [
    ('algoritm', 'Did you mean --help algorithm?'),
    ('algoritm.moon', 'Did you mean --help algorithm.moon?'),
    ('seed', 'parts are labels, partition'),
    ('halving', 'Did you mean --help tune.halving?'),
    ('algorithm.mooon', "got 'mooon'. Did you mean --algorithm=moon?"),
    ('algorithm.mine:f', 'must name a module with a source file; got mine:f')])
def test_help_of_what_is_no_part(name, message, tmp_path):
  done = inline.run('train', '--help', name, cwd=tmp_path, module='moon_jax')
  assert done.status == 2 and not done.out and done.err.count('\n') == 1
  assert message in done.err


@pytest.mark.parametrize('name', [
    'privacy.client', 'privacy.example', 'schedule.step', 'model.resnet18',
    'optimizer.adam', 'rounds.fedbuff', 'partition.dirichlet',
    'algorithm.moon'])
def test_help_explains_each_argument(name):
  """In the docstring of the function, or of the one that it refers to."""
  summary, entries = parts.describe(*name.split('.'))
  assert all(entry.help for entry in entries)
  assert not summary.startswith('Returns')
