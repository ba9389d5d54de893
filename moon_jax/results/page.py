"""Pages of results: Markdown, as GitHub reads it, and HTML rendered from it.

A page is a list of parts, which are Markdown or figures; markdown-it renders
them. The HTML is one file without scripts or requests: figures are data URIs.
The paragraph before a table is its caption.
"""

import base64
from collections.abc import Mapping
from collections.abc import Sequence
import html
import re
from typing import NamedTuple
import urllib.parse

_CONTROLS = re.compile(r'[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]')  # not in HTML
_LETTER = re.compile(r'\b(?!(?:of|to|s)\b)[^\W\d_]')
# Allows the style sheet and nothing else, not even from the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


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
    for part in filter(None, self.parts):
      blocks.append(part if isinstance(part, str) else (
          f'![{part.alt}]({urllib.parse.quote(figure_dir)}/{part.name}.svg)\\\n'
          f'{part.caption}'))
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
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{html.escape(_CONTROLS.sub('', self.title))}</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<main>
{body}</main>
</body>
</html>
"""


def table(caption: str, rows: Sequence[Mapping[str, str]],
          strong: Sequence[int] = ()) -> str:
  """Returns a table as Markdown, without columns that are empty in all rows.

  Args:
    caption: a sentence or more.
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
  return f'{caption}\n\n' + '\n'.join(
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


# Each colour of text has a contrast of at least 4.5 to each background, and
# lines of at least 3 (WCAG 2.2, 1.4.3 and 1.4.11), on light and dark screens.
# Figures are on white on both.
CSS = """
:root {
  color-scheme: light dark; --text: #1b1d21; --link: #0b4fa8; --page: #ffffff;
  --surface: #f2f4f7; --warning: #fff0c2; --line: #878d97;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --text: #e9eaec; --link: #8fbcff; --page: #16181c; --surface: #24272d;
    --warning: #4a3600; --line: #7d838d;
  }
}
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
main > * { overflow-wrap: break-word; }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); }
p, ul { max-width: 46rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
code, pre {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  font-size: .875em; overflow-wrap: anywhere; background: var(--surface);
}
pre { padding: .75rem 1rem; white-space: pre-wrap; }
blockquote {
  margin: 0; padding: .1rem 1.1rem; background: var(--warning);
  border: 2px solid var(--line); font-size: 1.3rem;
}
.scroll { overflow-x: auto; container-type: inline-size; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 .5rem; }
caption span {
  display: block; position: sticky; left: 0; max-width: min(100cqi, 46rem);
}
th, td {
  padding: .4rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); max-width: 26rem;
}
tbody th { font-weight: 400; min-width: 8rem; }
td[style] { white-space: nowrap; }
td code { display: block; min-width: 15rem; }
p:has(img) {
  display: inline-block; width: min(100%, 30rem); vertical-align: top;
}
img { display: block; width: 100%; background: #ffffff; color: #1b1d21; }
@media print {
  .scroll { overflow: visible; container-type: normal; }
  td code { min-width: 0; }
  table { font-size: .75rem; }
  tr, p, pre { break-inside: avoid; }
}
"""
