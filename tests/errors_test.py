"""Messages name flags in commands, and arguments in Python."""

import ast
import contextlib
import copy
import importlib.util
import pickle
import re

import numpy as np
import pytest

import moon_jax as mj
from moon_jax import data_command, errors, models, optimizers, user_code
from moon_jax.data import client_tests, clients, split
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.distributed import processes
from moon_jax.errors import setting
from moon_jax.simulation import checks
from support import ROOT

PACKAGE = ROOT / 'moon_jax'
# What only commands run; they may name flags in plain text.
OF_COMMANDS = re.compile(
    r'cli/|doctor/|results/|runs/targets/|(.*/)?__main__|'
    r'data_command|plan|sweep|train|tuning/(command|train)|'
    r'config/flags|runs/values')
FILES = [path for path in sorted(PACKAGE.rglob('*.py'))
         if not OF_COMMANDS.match(str(path.relative_to(PACKAGE)))]


def test_settings_are_named_as_their_reader_gives_them():
  assert [setting('seed'), setting('seed', 1), setting('seed', None)] == [
      'seed', 'seed=1', 'seed=None']
  assert setting('candidates', 5) == 'candidates=5'
  with errors.of_command():
    assert [setting('seed'), setting('seed', 1)] == ['--seed', '--seed=1']
    # Arguments in Python that are those of a part.
    assert setting('candidates', 5) == '--cohort.candidates=5'
  assert setting('seed') == 'seed'


def test_arguments_of_parts_are_named_by_their_part():
  with errors.naming(mu='algorithm.mu', exponent=''):
    assert [setting('mu', 1), setting('exponent')] == [
        'algorithm.mu=1', 'exponent']
    with errors.of_command():
      assert [setting('mu', 1), setting('exponent')] == [
          '--algorithm.mu=1', 'exponent']
  assert setting('mu') == 'mu'


def test_a_command_that_fails_leaves_python_as_it_is():
  with pytest.raises(errors.UserError), errors.of_command():
    raise errors.UserError('', 'invalid')
  assert not errors.names_flags()


def _texts(tree):
  """Yields the strings of a module that are no documentation."""
  documented = {
      id(node.body[0].value) for node in ast.walk(tree)
      if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
      and node.body and isinstance(node.body[0], ast.Expr)}
  inner = {id(part) for node in ast.walk(tree)
           if isinstance(node, ast.JoinedStr) for part in node.values}
  for node in ast.walk(tree):
    if id(node) in documented | inner:
      continue
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    if text := ''.join(part.value for part in parts if isinstance(
        part, ast.Constant) and isinstance(part.value, str)):
      yield node.lineno, text


def test_messages_of_the_library_have_no_flags_in_their_text():
  """They call `setting`; commands that they recommend are plain text."""
  assert len(FILES) > 100
  found = [f'{path.name}:{line}: {text}' for path in FILES
           for line, text in _texts(ast.parse(path.read_text('utf-8')))
           if re.search('(?<!-)--[a-z]', text.partition('moon-jax ')[0])]
  assert not found


def test_settings_are_named_when_a_message_is_made():
  """A module is imported before it is known who reads its messages."""
  def called_at_import(node):
    for child in ast.iter_child_nodes(node):
      if not isinstance(child, ast.FunctionDef | ast.Lambda):
        if isinstance(child, ast.Call) and 'setting' in ast.unparse(
            child.func).split('.'):
          yield child.lineno
        yield from called_at_import(child)

  assert not [f'{path.name}:{line}' for path in FILES
              for line in called_at_import(ast.parse(path.read_text('utf-8')))]


def test_errors_have_four_parts():
  assert not [
      f'{path.name}:{node.lineno}' for path in sorted(PACKAGE.rglob('*.py'))
      for node in ast.walk(ast.parse(path.read_text('utf-8')))
      if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
          ('UserError', 'OutOfMemory', 'InUse')) and len(node.args) == 1
      and not node.keywords and not isinstance(node.args[0], ast.Starred)]


@pytest.mark.parametrize('make', [
    copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies_of_errors_are_equal(make):
  with errors.of_command():
    error = errors.OutOfMemory('lanes=4', 'must fit', 'too many', 'Lower it')
  assert str(error) == '--lanes=4 must fit; got too many. Lower it'
  error.args = f'a run: {error}',  # its place
  again = make(error)
  assert type(again) is errors.OutOfMemory
  assert (str(again), vars(again)) == (str(error), vars(error))


LABELS = np.arange(60) % 3
FEATURES = np.arange(240, dtype=np.float32).reshape(60, 4)
DATA = mj.Dataset('toy', FEATURES, LABELS, FEATURES, LABELS, tuple('abc'))
ARRAYS = {'x_train': FEATURES, 'y_train': LABELS, 'x_test': FEATURES,
          'y_test': LABELS}
IID = {'partition': 'iid', 'num_clients': 2}
CALLS = {  # setting -> a call with it, and an invalid value
    'beta': (lambda x: mj.partition.dirichlet(LABELS, 3, x, 0), 0),
    'seed': (lambda x: mj.partition.iid(60, 3, x), None),
    'num_clients': (lambda x: mj.partition.natural(LABELS, x, 0), 4),
    'spread': (lambda x: mj.clock.lognormal(3, 0, spread=x), 6),
    'upload': (lambda x: mj.clock.lognormal(3, 0, upload=x), 0),
    'buffer_size': (lambda x: mj.clock.asynchronous(
        mj.clock.lognormal(8, 0), np.ones(8), 8, x, 1, 0), 0),
    'rate': (lambda x: mj.rounds.with_dropout(mj.rounds.all_clients(), x), 1),
    'cohort_size': (lambda x: mj.rounds.selected(len, x), 0),
    'client_test_fraction': (lambda x: client_tests.make(
        mj.Config(client_test_fraction=x), DATA, [np.arange(9)]), .01),
    'train_examples': (
        lambda x: split.make(mj.Config(train_examples=x, **IID), DATA), 61),
    'validation_fraction': (lambda x: split.make(
        mj.Config(validation_fraction=x, **IID), DATA), .001),
    'norm': (lambda x: models.make('mlp', 3, norm=x), 'layer'),
    'rank': (lambda x: mj.lora(mj.mlp(3), x), 0),
}
SPELLINGS = pytest.mark.parametrize(
    'spelling', [contextlib.nullcontext, errors.of_command])


def error_of(call):
  """Returns the error of a call, after a check of its parts."""
  with pytest.raises(errors.UserError) as caught:
    call()
  error = caught.value
  assert error.requirement and error.got and error.remedy
  assert error.setting == '' or error.requirement.startswith('must ')
  name = f'{setting(error.setting)} ' if error.setting else ''
  assert str(error) == (
      f'{name}{error.requirement}; got {error.got}. {error.remedy}')
  return error


@SPELLINGS
@pytest.mark.parametrize('name', CALLS)
def test_the_value_of_a_remedy_is_accepted(name, spelling):
  call, invalid = CALLS[name]
  with spelling():
    error = error_of(lambda: call(invalid))
    assert error.setting == name and str(invalid) in error.got
    value = re.search(rf'\b{name}=([\w.]*\w)', error.remedy)[1]
    call(ast.literal_eval(value) if value[0].isdigit() else value)


INVALID = [  # a setting, and a call in which it is invalid
    ('', lambda: arrays.to_dataset('toy', 'toy', {'x_train': FEATURES})),
    ('', lambda: arrays.to_dataset('toy', 'toy', ARRAYS | {'x_train': 'a'})),
    ('', lambda: arrays.to_dataset(
        'toy', 'toy', ARRAYS | {'y_test': LABELS + 3})),
    ('', lambda: clients.checked([[0], []], 60, 'clients[{}]')),
    ('is_member_SN', lambda: mj.leakage.lira(
        np.ones(2), np.ones((4, 2)), np.zeros((4, 2), bool))),
    ('', lambda: mj.rounds.listed([[0]]).check_has(2)),
    ('', lambda: data_command._downloadable('mnitsr')),
    ('path', lambda: mj.cohort.read('nowhere', 4, 2)),
    ('data_dir', lambda: mj.load_dataset('npz', '~nobody_at_all')),
    ('data_dir', lambda: mj.load_dataset('cifar10', 'nowhere')),
    ('data_dir', lambda: files.existing_directory('a', 'A', '', 'files')),
    ('algorithm', lambda: user_code.load('algorithm', 'no_such:method')),
    ('algorithm', lambda: user_code.load('algorithm', 'math:no_such')),
    ('coordinator_address', lambda: processes.join('here', 2, 0)),
    ('process_id', lambda: processes.join('here:1', 2, 2)),
    ('optimizer', lambda: optimizers.resolve(5)),
    ('module', lambda: mj.from_flax(len)),
    ('factory', lambda: mj.from_nnx(5)),
    ('task', lambda: mj.tasks.get('language')),
]


@SPELLINGS
@pytest.mark.parametrize('name, call', INVALID)
def test_errors_name_their_setting(name, call, spelling):
  with spelling():
    assert error_of(call).setting == name


def test_functions_of_ones_own_name_arguments_in_python():
  """Their arguments are no flags, also if a command calls them."""
  with errors.of_command(), pytest.raises(errors.UserError) as caught:
    user_code.call('model', 'nets:net', lambda: mj.lora(mj.mlp(3), 0))
  assert str(caught.value).startswith('--model=nets:net: rank must be')
  assert (caught.value.setting, caught.value.got) == ('rank', '0')


@pytest.mark.parametrize('extra, call', [
    ('privacy', lambda: checks.validate(mj.Config(
        dataset='digits', model='mlp', algorithm='fedavg', weighting='uniform',
        privacy='client(clip=1, noise_multiplier=1)'))),
    ('huggingface', lambda: mj.load_dataset('hf:name'))])
def test_a_package_that_few_need_is_named_with_its_extra(
    extra, call, monkeypatch):
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: (
      find(name) if name.startswith('moon_jax') else None))
  with pytest.raises(errors.UserError, match=(
      rf"needs the package .*Run: pip install 'moon_jax\[{extra}\]'")):
    call()
