"""Pages of results: Markdown, as GitHub reads it, and HTML rendered from it.

A page is a list of parts, which are Markdown or figures. `text`, `listing`,
`code` and `table` make Markdown of texts in which `code` in backticks, **bold**
and [label](url) are markup, and everything else is literal. markdown-it renders
it. The HTML is one file without scripts or requests: figures are data URIs, and
the paragraph before a table, or after a figure, is its caption.
"""

import base64
from collections.abc import Sequence
import html
import re
from typing import Any
from typing import NamedTuple
import urllib.parse

_MARKUP = re.compile(r'(`[^`]+`|\*\*|\[[^\[\]]+\]\([^()\s]+\))')
# Characters that would start markup; underscores only at the edge of a word.
_SPECIAL = re.compile(r'[\\`*<~]|(?<![^\W_])_|_(?![^\W_])|[\[\]](?=[(\[:^])')
_CONTROLS = re.compile(r'[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]')  # not in HTML
_LETTER = re.compile(r'\b(?!(?:of|to|s)\b)[^\W\d_]')
_LONG = 30  # characters; such cells need a column of some width
_MIN_SECTIONS = 4  # pages with fewer have no table of contents
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
    quoted = urllib.parse.quote(figure_dir)
    blocks = [f'# {text(self.title)}']
    if self.banner:
      blocks.append(f'> **{text(self.banner)}**')
    for part in self.parts:
      blocks.append(part if isinstance(part, str) else
                    f'![{_alt(part)}]({quoted}/{part.name}.svg)\n\n'
                    f'{text(part.caption)}')
    return '\n\n'.join(blocks) + '\n'

  def html(self) -> str:
    """Returns the page as the content of one HTML file."""
    body = _CONTROLS.sub('\ufffd', _body(self))
    title = html.escape(_CONTROLS.sub('\ufffd', self.title).replace('`', ''))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def text(content: str) -> str:
  """Returns a text in one line, with all but its markup escaped."""
  pieces = _MARKUP.split(' '.join(content.split()))
  return ''.join(piece if i % 2 else _SPECIAL.sub(r'\\\g<0>', piece)
                 for i, piece in enumerate(pieces))


def listing(items: Sequence[str]) -> str:
  """Returns a list with bullets."""
  return '\n'.join(f'- {text(item)}' for item in items)


def code(content: str) -> str:
  """Returns preformatted text, such as commands."""
  return f'```\n{content.rstrip()}\n```'


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]],
          strong: Sequence[int] = ()) -> str:
  """Returns a table whose first column names its rows.

  Args:
    caption: a sentence or more.
    header: names of the columns.
    rows: cells. Columns of numbers are aligned to the right.
    strong: indices of the rows in bold.
  """
  marks = ['---:' if _is_numeric([row[i] for row in rows]) else '---'
           for i in range(len(header))]
  lines = [map(_cell, header), marks, *(
      [f'**{_cell(cell)}**' if i in strong and cell else _cell(cell)
       for cell in row] for i, row in enumerate(rows))]
  return f'{text(caption)}\n\n' + '\n'.join(
      f'| {" | ".join(line)} |' for line in lines)


def _cell(content):
  return text(content).replace('|', r'\|')


def _is_numeric(cells):
  known = [cell for cell in cells if any(map(str.isdigit, cell))]
  others = {cell for cell in cells if cell not in known}
  return bool(known) and others <= {'', '-', '–'} and not any(
      map(_LETTER.search, known))


def _alt(figure):
  return re.sub(r'[\\`*<~_&\[\]]', r'\\\g<0>', ' '.join(figure.alt.split()))


def _body(page):
  """Returns the elements within <main>."""
  from markdown_it import MarkdownIt

  parser = MarkdownIt('commonmark', {'html': False}).enable('table')
  blocks = _blocks(parser.parse(page.markdown()))
  render = lambda tokens: parser.renderer.render(tokens, parser.options, {})
  uris = {figure.name: _data_uri(figure.svg) for figure in page.figures}
  out: list[str] = []
  titles = []
  while blocks:
    block, kind = blocks.pop(0), ''
    kind = _kind(block)
    if kind == 'h2':
      titles.append(block[1].content)
      block[0].attrSet('id', f'section-{len(titles)}')
      out.append(render(block))
    elif kind == 'p' and blocks and _kind(blocks[0]) == 'table':
      out.append(_table(render, block, blocks.pop(0)))
    elif kind == 'figure':
      image, = block[1].children
      image.attrSet('src', uris[str(image.attrGet('src')).rpartition('/')[2]
                                .removesuffix('.svg')])
      figure = (f'<figure>\n<div class="card">{render([block[1]])}</div>\n'
                f'<figcaption>{render(blocks.pop(0)[1:2])}</figcaption>\n'
                '</figure>\n</div>\n')
      if out and out[-1].endswith('</figure>\n</div>\n'):  # side by side
        out.append(out.pop().removesuffix('</div>\n') + figure)
      else:
        out.append(f'<div class="figures">\n{figure}')
    else:
      if kind == 'blockquote':
        block[1].attrSet('class', 'banner')
        block = block[1:-1]
      out.append(render(block))
  if len(titles) >= _MIN_SECTIONS:
    first = next(i for i, item in enumerate(out) if item.startswith('<h2'))
    out.insert(first, _contents(titles))
  return ''.join(out)


def _blocks(tokens):
  """Splits tokens into those of the blocks of the document."""
  blocks: list[list[Any]] = [[]]
  depth = 0
  for token in tokens:
    blocks[-1].append(token)
    depth += token.nesting
    if not depth:
      blocks.append([])
  return blocks[:-1]


def _kind(block):
  """Returns the tag of a block; "figure" for a paragraph of one picture."""
  first, *rest = block
  children = rest[0].children if rest and rest[0].type == 'inline' else None
  if first.tag == 'p' and children and [
      child.type for child in children] == ['image']:
    return 'figure'
  return first.tag


def _table(render, caption, block):
  """Returns a table that scrolls in a region that the keyboard can focus."""
  is_first = False
  for i, token in enumerate(block):
    if token.type == 'tr_open':
      is_first = True
    if token.type in ('th_open', 'td_open'):
      if token.attrs.pop('style', '') == 'text-align:right':
        token.attrSet('class', 'number')
      elif len(block[i + 1].content) > _LONG:
        token.attrSet('class', 'long')
      if token.tag == 'th':
        token.attrSet('scope', 'col')
      elif is_first and block[i + 1].content:
        token.tag = block[i + 2].tag = 'th'
        token.attrSet('scope', 'row')
      is_first = False
  label = html.escape('Table: ' + ''.join(
      child.content for child in caption[1].children))
  start, end = render(block).split('\n', 1)
  return (f'<div class="scroll" role="region" tabindex="0" '
          f'aria-label="{label}">\n{start}\n'
          f'<caption><span>{render(caption[1:2])}</span></caption>\n'
          f'{end}</div>\n')


def _contents(titles):
  items = '\n'.join(f'<li><a href="#section-{i}">{html.escape(title)}</a></li>'
                    for i, title in enumerate(titles, 1))
  return ('<nav aria-labelledby="contents">\n<p id="contents">Contents</p>\n'
          f'<ul>\n{items}\n</ul>\n</nav>\n')


def _data_uri(svg):
  encoded = base64.b64encode(svg.encode()).decode()
  return f'data:image/svg+xml;base64,{encoded}'


# Each colour of text has a contrast of at least 4.5 to each background, and
# lines of at least 3 (WCAG 2.2, 1.4.3 and 1.4.11), on light and dark screens.
# Figures are on white on both.
CSS = """
:root {
  color-scheme: light dark; --text: #1b1d21; --muted: #4a4f58;
  --link: #0b4fa8; --page: #ffffff; --surface: #f2f4f7; --warning: #fff0c2;
  --line: #878d97;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --text: #e9eaec; --muted: #b9bdc4; --link: #8fbcff; --page: #16181c;
    --surface: #24272d; --warning: #4a3600; --line: #7d838d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .5rem 0 1rem; }
h2 {
  font-size: 1.35rem; margin: 3rem 0 .75rem; padding-top: .75rem;
  border-top: 1px solid var(--line);
}
h1, h2, p, li, caption, figcaption { overflow-wrap: break-word; }
p, ul { max-width: 46rem; margin: 0 0 1rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
code, pre {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  font-size: .875em; overflow-wrap: anywhere; background: var(--surface);
}
pre { padding: .75rem 1rem; white-space: pre-wrap; }
.banner {
  max-width: none; padding: .9rem 1.1rem; background: var(--warning);
  border: 2px solid var(--line); font-size: 1.3rem;
}
nav p { font-weight: 700; margin: 0; }
nav ul { columns: 20rem; max-width: none; }
.scroll {
  overflow-x: auto; margin: 1.25rem 0 1.75rem; container-type: inline-size;
}
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 .5rem; }
caption span {
  display: block; position: sticky; left: 0; max-width: min(100cqi, 46rem);
}
th, td {
  padding: .4rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); max-width: 26rem;
}
th { font-weight: 400; }
thead th { font-weight: 700; vertical-align: bottom; }
.number { text-align: right; }
td.number { white-space: nowrap; }
.long { min-width: 15rem; }
.figures { display: flex; flex-wrap: wrap; gap: 1.5rem; margin: 1.25rem 0; }
figure { margin: 0; flex: 1 1 20rem; min-width: 0; max-width: 30rem; }
.card { background: #ffffff; color: #1b1d21; padding: .25rem; }
img { display: block; width: 100%; height: auto; }
figcaption { color: var(--muted); font-size: .925rem; margin-top: .5rem; }
@media print {
  .scroll { overflow: visible; container-type: normal; }
  .long { min-width: 0; }
  nav { display: none; }
  table { font-size: .75rem; }
  tr, figure, pre { break-inside: avoid; }
}
"""
