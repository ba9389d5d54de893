"""Pages of results: Markdown, as GitHub reads it, and HTML rendered from it.

A page is a list of parts, which are Markdown or figures; markdown-it renders
them into page.html. The HTML is one file without scripts or requests: figures
are data URIs. The paragraph before a table is its caption.
"""

import base64
from collections.abc import Mapping, Sequence
import html
import importlib.resources
import pathlib
import re
import string
from typing import NamedTuple
import urllib.parse

from moon_jax.data.io import files as files_lib
from moon_jax.errors import UserError
from moon_jax.runs import directory as directory_lib

_CONTROLS = re.compile(r'[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]')  # not in HTML
_LETTER = re.compile(r'\b(?!(?:of|to|s)\b)[^\W\d_]')

_FILES = '.html', '.htm', '.md', '.pdf', '.svg', '.png', '.txt', '.csv'


class Figure(NamedTuple):
  """A picture."""

  name: str  # stem of the file, unique in the page
  svg: str  # the content of an SVG file
  alt: str  # what the picture shows, for readers who do not see it
  caption: str
  is_wide: bool = False  # whether it has a row of its own

  def _repr_html_(self) -> str:
    return (f'<figure>{self.svg}<figcaption>{html.escape(self.caption)}'
            '</figcaption></figure>')


class Page(NamedTuple):
  """A document."""

  title: str
  banner: str  # one line about the budget, shown in large letters; or ''
  parts: Sequence[str | Figure]  # a section begins with `## TITLE`

  @property
  def figures(self) -> list[Figure]:
    """The figures in their order."""
    return [part for part in self.parts if isinstance(part, Figure)]

  def markdown(self, figure_dir: str = '') -> str:
    """Returns the page as Markdown; its figures are FIGURE_DIR/NAME.svg."""
    blocks = [f'# {self.title}', *[f'> **{self.banner}**'] * bool(self.banner)]
    place = urllib.parse.quote(figure_dir)
    for part in self.parts:
      if isinstance(part, Figure):
        title = ' "wide"' * part.is_wide
        part = (f'![{part.alt}]({place}/{part.name}.svg{title})\\\n'
                f'{part.caption}')
      blocks += [part] if part else []
    return '\n\n'.join(blocks) + '\n'

  def html(self) -> str:
    """Returns the page as the content of one HTML file."""
    from markdown_it import MarkdownIt

    body = _with_roles(MarkdownIt('commonmark', {'html': False}).enable(
        'table').render(_CONTROLS.sub('\ufffd', self.markdown())))
    for figure in self.figures:
      encoded = base64.b64encode(figure.svg.encode()).decode()
      body = body.replace(f'src="/{figure.name}.svg"',
                          f'src="data:image/svg+xml;base64,{encoded}"')
    template = importlib.resources.files(__package__).joinpath('page.html')
    return string.Template(template.read_text(encoding='utf-8')).substitute(
        title=html.escape(_CONTROLS.sub('', self.title)), body=body)

  def write(self, out: pathlib.Path, stem: str) -> pathlib.Path:
    """Writes STEM.html, which it returns, STEM.md and the figures in STEM."""
    path = out / f'{stem}.html'
    files = {path: self.html(), out / f'{stem}.md': self.markdown(stem)}
    files |= {out / stem / f'{figure.name}.svg': figure.svg
              for figure in self.figures}
    try:
      for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        directory_lib.write_atomically(file, text.encode())
    except OSError as error:
      raise UserError(
          'out', 'must be writable', f'{out}: {error.strerror or error}',
          'Name another directory') from error
    return path


def directory(out: str) -> pathlib.Path:
  """Returns the directory that --out names."""
  path = files_lib.user_path(out, 'out')
  if path.suffix.lower() in _FILES and not path.is_dir():
    raise UserError('out', 'must be a directory, which gets a page, tables and '
                    'figures', out, f'Write --out={path.with_suffix("")}')
  return path


def table(caption: str, rows: Sequence[Mapping[str, str]],
          strong: Sequence[int] = ()) -> str:
  """Returns a table as Markdown, without columns that are empty in all rows.

  Args:
    caption: a sentence or more; '' only in documents without HTML.
    rows: the cells of each row by column; a missing one is empty. The first
      column names the rows. Numbers are aligned to the right.
    strong: indices of the rows in bold.
  """
  names = dict.fromkeys(name for row in rows for name in row)
  columns = {name: [_cell(row.get(name, '')) for row in rows] for name in names}
  columns = {name: cells for name, cells in columns.items() if any(cells)}
  marks = ['---:' if _is_numeric(cells) else '---'
           for cells in columns.values()]
  lines = [map(_cell, columns), marks, *(
      [f'**{cell}**' if i in strong and cell else cell for cell in cells]
      for i, cells in enumerate(zip(*columns.values())))]
  return f'{caption}\n\n'.lstrip() + '\n'.join(
      f'| {" | ".join(line)} |' for line in lines)


def _cell(content):
  return ' '.join(content.split()).replace('|', r'\|')


def _is_numeric(cells):
  known = [cell for cell in cells if any(map(str.isdigit, cell))]
  return bool(known) and {*cells} - {*known} <= {'', '-', '–'} and not any(
      map(_LETTER.search, known))


def _with_roles(body):
  """Returns HTML of markdown-it where tables have captions and scopes.

  A table scrolls, without its caption, in a region that the keyboard can focus.
  Texts are escaped, so that all tags are elements.
  """
  def opened(match):
    label = re.sub('<[^>]*>', '', match[1])
    return (f'<figure>\n<figcaption>{match[1]}</figcaption>\n<div '
            'class="scroll" role="region" tabindex="0" aria-label="Table: '
            f'{label}">\n<table>')

  body = re.sub('<p>([^\n]*)</p>\n<table>', opened, body)
  body = body.replace('</table>', '</table>\n</div>\n</figure>')
  body = re.sub(r'<th\b', '<th scope="col"', body)
  body = re.sub('<tr>\n<td([^>]*)>(.*)</td>', lambda match: (
      f'<tr>\n<th scope="row"{match[1]}>'
      + re.sub(r'(?<=\w)\((?=[^\W\d])(?![^<]*>)', '(<wbr>', match[2])
      + '</th>'), body)
  body = re.sub(r'(?<=\d) ± (?=\d)', '\xa0±\xa0', body)
  # Lines end between the parts of a path, and between the flags of a command.
  body = re.sub('<h1>.*</h1>', lambda match: re.sub(
      '(?<!<)[/_]', r'\g<0><wbr>', match[0]), body)
  return re.sub('(<pre><code>)(.*?)(</code>)', lambda match: (
      match[1] + re.sub(r'(?<!\S)-\S+', r'<span>\g<0></span>', match[2])
      + match[3]), body, flags=re.DOTALL)
