"""The Python examples of README.md and examples/ run, and learn."""

import pathlib
import re
import runpy

import pytest

from moon_jax.algorithms.registry import METHODS

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = re.findall(
    r'```python\n(.*?)```', (ROOT / 'README.md').read_text(encoding='utf-8'),
    re.DOTALL)
MAX_LINES = 25  # of an example, without imports and blank lines


def lines(example):
  return [line for line in example.splitlines()
          if line.strip() and not line.startswith('import ')]


def test_the_first_example_trains_moon(capsys):
  exec(compile(EXAMPLES[0], 'README.md', 'exec'), {})
  printed = capsys.readouterr().out.splitlines()
  assert [line.split()[0] for line in printed] == [
      str(t) for t in range(1, 6)]
  first, *_, last = [float(line.split()[1]) for line in printed]
  assert first > .4 and last > .8


def test_the_page_names_every_method():
  text = (ROOT / 'README.md').read_text(encoding='utf-8').lower()
  assert not [name for name in METHODS if name not in text]


def test_user_defined_values_train_in_few_lines(capsys):
  assert len(lines(EXAMPLES[1])) <= MAX_LINES
  exec(compile(EXAMPLES[1], 'README.md', 'exec'), {})
  accuracies = eval(capsys.readouterr().out)
  assert len(accuracies) == 5 and accuracies[-1] > .9


@pytest.mark.parametrize('path', sorted(
    (ROOT / 'examples').glob('*.py')), ids=lambda path: path.name)
def test_examples_run(path, capsys):
  runpy.run_path(str(path), run_name='__main__')
  assert capsys.readouterr().out
