"""Pages of results: Markdown, as GitHub reads it, and HTML rendered from it.

A page is a list of parts, which are Markdown or figures; markdown-it renders
them into page.html. The HTML is one file without scripts or requests: figures
are data URIs. The paragraph before a table is its caption.
"""

import base64
from collections.abc import Mapping, Sequence
import html
import importlib.resources
import re
import string
from typing import NamedTuple
import urllib.parse

_CONTROLS = re.compile(r'[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]')  # not in HTML
_LETTER = re.compile(r'\b(?!(?:of|to|s)\b)[^\W\d_]')


class Figure(NamedTuple):
  """A picture."""

  name: str  # stem of the file, unique in the page
  svg: str  # the content of an SVG file
  alt: str  # what the picture shows, for readers who do not see it
  caption: str


class Page(NamedTuple):
  """A document.

  Attributes:
    title: its title.
    banner: one line about the budget, shown in large letters; or ''.
    parts: Markdown and figures. A section begins with `## TITLE`.
  """

  title: str
  banner: str
  parts: Sequence[str | Figure]

  @property
  def figures(self) -> list[Figure]:
    """The figures in their order."""
    return [part for part in self.parts if isinstance(part, Figure)]

  def markdown(self, figure_dir: str = '') -> str:
    """Returns the page as Markdown.

    Args:
      figure_dir: directory of the files NAME.svg, relative to the document.
    """
    blocks = [f'# {self.title}', *[f'> **{self.banner}**'] * bool(self.banner)]
    place = urllib.parse.quote(figure_dir)
    for part in self.parts:
      if isinstance(part, Figure):
        part = f'![{part.alt}]({place}/{part.name}.svg)\\\n{part.caption}'
      blocks += [part] if part else []
    return '\n\n'.join(blocks) + '\n'

  def html(self) -> str:
    """Returns the page as the content of one HTML file."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt('commonmark', {'html': False}).enable('table')
    tokens = _with_roles(parser.parse(_CONTROLS.sub('\ufffd', self.markdown())))
    body = parser.renderer.render(tokens, parser.options, {})
    for figure in self.figures:
      encoded = base64.b64encode(figure.svg.encode()).decode()
      body = body.replace(f'src="/{figure.name}.svg"',
                          f'src="data:image/svg+xml;base64,{encoded}"')
    template = importlib.resources.files(__package__).joinpath('page.html')
    return string.Template(template.read_text(encoding='utf-8')).substitute(
        title=html.escape(_CONTROLS.sub('', self.title)), body=body)


def table(caption: str, rows: Sequence[Mapping[str, str]],
          strong: Sequence[int] = ()) -> str:
  """Returns a table as Markdown, without columns that are empty in all rows.

  Args:
    caption: a sentence or more; '' only in documents without HTML.
    rows: the cells of each row by column, the same columns in all rows. The
      first column names the rows. Numbers are aligned to the right.
    strong: indices of the rows in bold.
  """
  columns = {name: [_cell(row[name]) for row in rows] for name in rows[0]}
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


def _with_roles(tokens):
  """Returns tokens of markdown-it where tables have captions and scopes.

  A table scrolls in a region that the keyboard can focus.
  """
  from markdown_it.token import Token

  raw = lambda content: Token('html_block', '', 0, content=content)
  found = []
  for i, token in enumerate(tokens):
    found.append(token)
    if token.type == 'table_open':
      caption = found[-3]
      label = html.escape('Table: ' + ''.join(
          child.content for child in caption.children))
      found[-4:] = [
          raw('<div class="scroll" role="region" tabindex="0" '
              f'aria-label="{label}">'), token,
          raw('<caption><span>'), caption, raw('</span></caption>')]
    elif token.type == 'table_close':
      found.append(raw('</div>'))
    elif token.type == 'th_open':
      token.attrSet('scope', 'col')
    elif token.type == 'td_open' and tokens[i - 1].type == 'tr_open':
      token.tag = tokens[i + 2].tag = 'th'
      token.attrSet('scope', 'row')
  return found
