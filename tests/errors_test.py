"""Messages name flags in commands, and arguments in Python."""

import ast
import re

import pytest

from moon_jax import errors
from moon_jax.errors import setting
from support.forked import ROOT

PACKAGE = ROOT / 'moon_jax'
# What only commands run; they may name flags in plain text.
OF_COMMANDS = re.compile(
    r'cli/|doctor/|results/|runs/targets/|(.*/)?__main__|'
    r'data_command|plan|sweep|train|config/flags|runs/values')
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
    raise errors.UserError('invalid')
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
           if re.search('--[a-z]', text.partition('moon-jax ')[0])]
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
