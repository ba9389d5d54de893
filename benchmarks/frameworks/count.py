"""Counts the lines and commands of each framework, and writes the tables.

python -m benchmarks.frameworks.count            prints the tables
python -m benchmarks.frameworks.count --write    rewrites docs/comparison.md

A line is a logical line of Python: a statement, or the head of a compound
statement, however many lines of text it takes. Comments, docstrings and empty
lines do not count, and the imports from one module count once: our formatting
of one import per line is not the users'. In files that are not Python every
line of text counts that is not a comment.
"""

import argparse
import ast
from collections import Counter
import hashlib
import io
import json
import pathlib
import shlex
import tokenize
import tomllib

HERE = pathlib.Path(__file__).parent
DOCUMENT = HERE.parents[1] / 'docs' / 'comparison.md'
BEGIN, END = '<!-- frameworks -->\n', '<!-- end of frameworks -->'
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
           tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}


def tasks() -> dict:
  """Returns the content of tasks.toml."""
  return tomllib.loads((HERE / 'tasks.toml').read_text(encoding='utf-8'))


def checked() -> dict:
  """Returns the results of check.py, by framework; empty before the first."""
  path = HERE / 'checked.json'
  if not path.exists():
    return {}
  return json.loads(path.read_text(encoding='utf-8'))


def paths(framework: str, program: dict) -> list[pathlib.Path]:
  """Returns the files of a program."""
  return [HERE / f'with_{framework}' / name for name in program['files']]


def digest(framework: str, program: dict) -> str:
  """Returns a hash of what a user writes and types: files and commands."""
  content = hashlib.sha256()
  for path in paths(framework, program):
    content.update(path.read_bytes())
  content.update(json.dumps(program['commands']).encode())
  return content.hexdigest()


def python_lines(source: str) -> tuple[int, list[str]]:
  """Returns the number of logical lines of Python code, and its lines of text.
  """
  left_out, modules = set(), set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.ImportFrom):
      if node.module in modules:  # could be in the line of the first import
        left_out.update(range(node.lineno, node.end_lineno + 1))
      modules.add(node.module)
    if (isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef,
                          ast.AsyncFunctionDef))
        and ast.get_docstring(node, clean=False) is not None):
      left_out.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
  logical, physical = 0, set()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.start[0] in left_out:
      continue
    logical += token.type == tokenize.NEWLINE
    if token.type not in _LAYOUT:
      physical.update(range(token.start[0], token.end[0] + 1))
  text = source.splitlines()
  return logical, [text[number - 1].strip() for number in sorted(physical)]


def lines(path: pathlib.Path) -> tuple[int, list[str]]:
  """Returns the number of logical lines of a file, and its lines of text."""
  text = path.read_text(encoding='utf-8')
  if path.suffix == '.py':
    return python_lines(text)
  found = [line.strip() for line in text.splitlines()
           if line.strip() and not line.lstrip().startswith('#')]
  return len(found), found


def counts(framework: str, program: dict) -> dict[str, int]:
  """Returns the numbers of lines, commands and options of a program.

  `new` are the lines of text that the program of the task npz does not have.
  """
  found = [lines(path) for path in paths(framework, program)]
  text = Counter(line for _, text in found for line in text)
  first = Counter(
      line for path in paths(framework, tasks()['programs'][framework]['npz'])
      for line in lines(path)[1])
  words = [word for command in program['commands']
           for word in shlex.split(command)]
  return {'logical': sum(logical for logical, _ in found),
          'physical': text.total(), 'new': (text - first).total(),
          'commands': len(program['commands']),
          'options': sum(word.startswith('-') for word in words)}


def is_checked(framework: str, task: str, program: dict) -> bool:
  """Returns whether check.py ran this program, as it is now, with success."""
  result = checked().get(framework, {}).get('tasks', {}).get(task, {})
  return (result.get('passed', False)
          and result['sha256'] == digest(framework, program))


def _plural(number, noun):
  return f'{number} {noun}' + 's' * (number != 1)


def markdown() -> str:
  """Returns the tables of lines and commands, and of the other counts."""
  content = tasks()
  frameworks = content['frameworks']
  results = checked()
  titles = ['task']
  for framework in frameworks:
    versions = results.get(framework['name'], {}).get('versions', {})
    version = versions.get(framework['package'], '')
    titles.append(f'{framework["title"]} {version}'.strip())
  installs = [_plural(len(framework['install']), 'command')
              for framework in frameworks]
  first = [titles, ['---'] * len(titles), ['installation', *installs]]
  second = [titles, ['---'] * len(titles)]
  for task in content['tasks']:
    rows = [task['title']], [task['title']]
    for framework in frameworks:
      name = framework['name']
      program = content['programs'][name].get(task['name'])
      if program is None:
        for row in rows:
          row.append('none shipped')
        continue
      found = counts(name, program)
      mark = '' if is_checked(name, task['name'], program) else ' (not run)'
      rows[0].append(f'{_plural(found["logical"], "line")}, '
                     f'{_plural(found["commands"], "command")}{mark}')
      rows[1].append(f'{_plural(found["physical"], "line")}, '
                     f'{found["new"]} new, '
                     f'{_plural(found["options"], "option")}')
    first.append(rows[0])
    second.append(rows[1])
  table = lambda rows: '\n'.join(f'| {" | ".join(row)} |' for row in rows)
  return (f'{table(first)}\n\nThe same programs in lines of text; the lines '
          'among them that the program of (c) does not have; and the options '
          f'of the commands:\n\n{table(second)}\n')


def with_tables(text: str) -> str:
  """Returns the text of a document with its tables generated again."""
  head, _, rest = text.partition(BEGIN)
  _, _, tail = rest.partition(END)
  return f'{head}{BEGIN}{markdown()}{END}{tail}'


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--write', action='store_true',
                      help='rewrite docs/comparison.md')
  if parser.parse_args().write:
    text = DOCUMENT.read_text(encoding='utf-8')
    DOCUMENT.write_text(with_tables(text), encoding='utf-8')
  else:
    print(markdown())


if __name__ == '__main__':
  main()
