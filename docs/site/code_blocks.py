"""Code of the package in pages: `<!-- code: PATH NAME -->`.

The comment is invisible on GitHub, where the link next to it leads to the file.
"""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
_MARKER = re.compile(r'^<!-- code: (\S+) ([\w., ]+) -->$', re.MULTILINE)


def inserted(markdown: str) -> str:
  """Returns Markdown with the code that its comments name."""
  def block(match):
    names = re.split(r'[, ]+', match[2].strip())
    sources = '\n\n\n'.join(source(match[1], name) for name in names)
    return f'```python\n{sources}\n```'

  return _MARKER.sub(block, markdown)


def source(path: str, name: str) -> str:
  """Returns the code of a function, method or class without its docstring.

  Args:
    path: of the file in the repository.
    name: its name; `a.b` is the function b within a.

  Raises:
    ValueError: if the file has no such name.
  """
  text = (ROOT / path).read_text(encoding='utf-8')
  node = ast.parse(text)
  for part in name.split('.'):
    children = [child for child in ast.walk(node) if isinstance(
        child, ast.FunctionDef | ast.ClassDef) and child.name == part]
    if not children:
      raise ValueError(f'{path} must define {name}; a page shows its code')
    node = children[0]
  lines = text.splitlines()
  kept = lines[node.lineno - 1:node.end_lineno]
  if ast.get_docstring(node) is not None:
    first = node.body[0]
    start, stop = first.lineno - node.lineno, first.end_lineno - node.lineno + 1
    while stop < len(kept) and not kept[stop].strip():
      stop += 1
    kept[start:stop] = []
  return '\n'.join(line[node.col_offset:] for line in kept)
