"""Files of the repository that pages link to, as pages and files of the site.

A page `docs/NAME.md` is `NAME.md` in the site. Any other file `PATH` to which a
page links, directly or through other pages, is in `repository/`: Markdown as a
page, program text and data as a page with a listing, a directory as a page with
its entries, and all else as it is.
"""

from collections.abc import Callable
import pathlib
import posixpath
import re

ROOT = pathlib.Path(__file__).parents[2]
_PREFIX = 'repository/'
_LANGUAGES = {
    '.py': 'python', '.sh': 'bash', '.toml': 'toml', '.json': 'json',
    '.yaml': 'yaml', '.yml': 'yaml', '.flags': 'text', '.txt': 'text',
    '.txtpb': 'text', '': 'text'}
# Code, in which nothing is a link: fenced blocks and code spans.
_CODE = re.compile(r'^( *)(```+)[^\n]*\n.*?^ *\2`*[ \t]*$|(`+)(?!`).+?(?<!`)\3'
                   r'(?!`)', re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r'(?<=\]\()([^()\s]+)(?=[)\s])')


def outside_code(text: str, function: Callable[[str], str]) -> str:
  """Returns Markdown with `function` applied to all that is not code."""
  parts, position = [], 0
  for code in _CODE.finditer(text):
    parts += [function(text[position:code.start()]), code[0]]
    position = code.end()
  return ''.join([*parts, function(text[position:])])


def path_of(uri: str) -> str:
  """Returns the path in the repository of a page of the site."""
  if not uri.startswith(_PREFIX):
    return f'docs/{uri}'
  path = uri.removeprefix(_PREFIX)
  if (ROOT / path).exists():
    return path
  return (posixpath.dirname(path) if posixpath.basename(path) == 'index.md'
          else path.removesuffix('.md'))


def uri_of(path: str) -> str:
  """Returns the page or file of the site for a path in the repository.

  Raises:
    FileNotFoundError: if there is no such path.
  """
  file = ROOT / path
  if not file.exists():
    raise FileNotFoundError(path)
  if path in ('docs', 'docs/README.md'):
    return 'index.md'
  if path.startswith('docs/') and file.suffix != '.py':
    return path.removeprefix('docs/')
  if file.is_dir():
    readme = file / 'README.md'
    return f'{_PREFIX}{path}/{"README.md" if readme.exists() else "index.md"}'
  is_listing = file.suffix in _LANGUAGES
  return f'{_PREFIX}{path}.md' if is_listing else f'{_PREFIX}{path}'


def links(text: str, path: str) -> list[str]:
  """Returns the paths in the repository to which the file `path` links."""
  return [_joined(path, target)
          for target in _TARGET.findall(_CODE.sub(' ', text))
          if _is_relative(target)]


def rewritten(text: str, uri: str) -> str:
  """Returns the Markdown of a page, with links to pages of the site."""
  path, folder = path_of(uri), posixpath.dirname(uri)

  def replace(match):
    if not _is_relative(match[1]):
      return match[1]
    _, _, anchor = match[1].partition('#')
    try:
      target = uri_of(_joined(path, match[1]))
    except FileNotFoundError:
      return match[1]  # mkdocs reports it
    target = posixpath.relpath(target, folder or '.')
    return f'{target}#{anchor}' if anchor else target

  return outside_code(text, lambda part: _TARGET.sub(replace, part))


def pages(names: list[str]) -> dict[str, str | None]:
  """Returns what the pages of docs/ need, by name in the site.

  Args:
    names: paths of the pages in the repository.

  Returns:
    The Markdown of each further page, and None for a file that is copied.
  """
  contents: dict[str, str | None] = {}
  waiting = list(names)
  while waiting:
    path = waiting.pop()
    text = _markdown(path)
    if path not in names:
      contents[uri_of(path)] = text
    for target in links(text or '', path):
      if not (ROOT / target).exists():
        continue
      uri = uri_of(target)
      if uri.startswith(_PREFIX) and uri not in contents:
        waiting.append(path_of(uri))
        contents[uri] = None
  return contents


def _is_relative(target):
  return not re.match(r'[a-z]+:|#|/', target)


def _joined(path, target):
  folder = path if (ROOT / path).is_dir() else posixpath.dirname(path)
  return posixpath.normpath(posixpath.join(folder, target.partition('#')[0]))


def _markdown(path):
  """Returns a path as Markdown; None if it is copied."""
  file = ROOT / path
  if file.is_dir():
    return _listing(file, path)
  if file.suffix == '.md':
    return file.read_text(encoding='utf-8')
  if file.suffix not in _LANGUAGES:
    return None
  text = file.read_text(encoding='utf-8').rstrip('\n')
  fence = '`' * max(3, 1 + max(map(len, re.findall('`+', text)), default=0))
  return (f'# {file.name}\n\n`{path}`\n\n'
          f'{fence}{_LANGUAGES[file.suffix]}\n{text}\n{fence}\n')


def _listing(folder, path):
  """Returns the page of a directory, with links to its files."""
  rows = []
  for entry in sorted(folder.iterdir()):
    if entry.name.startswith(('.', '__')) and entry.name != '__init__.py':
      continue
    is_shown = entry.is_file() and (
        entry.suffix in _LANGUAGES or entry.suffix == '.md')
    name = entry.name + ('/' if entry.is_dir() else '')
    rows.append(f'- [{name}]({entry.name})' if is_shown else f'- `{name}`')
  return '\n'.join([f'# {path}/', '', *rows, ''])
