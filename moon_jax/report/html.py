"""Renders a page as one HTML file without scripts or requests.

Tables scroll sideways within a region that the keyboard can focus. Figures that
follow one another are side by side where the window is wide enough.
"""

import html
import itertools
import re

from moon_jax.report import document
from moon_jax.report import markup
from moon_jax.report import stylesheet
from moon_jax.report import svg

_MIN_SECTIONS = 4  # pages with fewer have no table of contents
_LONG = 30  # characters; such cells need a column of some width
_SHORT = 20  # characters; such cells stay in one line
# Words with hyphens, such as flags, that fit a line of a phone.
_WORD = re.compile(r'[^\s-]*-\S{1,35}(?!\S)')
_CONTROLS = re.compile(r'[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]')  # not in HTML
# Allows the style sheet and nothing else, not even from the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(page: document.Page) -> str:
  """Returns the content of an HTML file.

  Raises:
    TypeError, ValueError: if `document.validate` refuses the page, or
      `svg.inline` a figure.
  """
  document.validate(page)
  sections = '\n'.join(
      f'<section aria-labelledby="section-{i}">\n'
      f'<h2 id="section-{i}">{_inline(section.title)}</h2>\n'
      f'{_parts(section.parts)}\n</section>'
      for i, section in enumerate(page.sections, 1))
  banner = page.banner and f'<p class="banner">{_inline(page.banner)}</p>\n'
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{_escape(markup.plain(page.title))}</title>
<link rel="icon" href="data:,">
<style>{stylesheet.CSS}</style>
</head>
<body>
<main>
<h1>{_inline(page.title)}</h1>
{banner}{_parts(page.lead)}
{_contents(page)}{sections}
</main>
</body>
</html>
"""


def _contents(page):
  if len(page.sections) < _MIN_SECTIONS:
    return ''
  items = '\n'.join(
      f'<li><a href="#section-{i}">{_escape(markup.plain(section.title))}</a>'
      '</li>' for i, section in enumerate(page.sections, 1))
  return (f'<nav aria-labelledby="contents">\n<p id="contents">Contents</p>\n'
          f'<ul>\n{items}\n</ul>\n</nav>\n')


def _parts(parts):
  blocks = []
  for is_figure, group in itertools.groupby(
      parts, lambda part: isinstance(part, document.Figure)):
    rendered = '\n'.join(map(_part, group))
    blocks.append(f'<div class="figures">\n{rendered}\n</div>' if is_figure
                  else rendered)
  return '\n'.join(blocks)


def _part(part):
  match part:
    case document.Text(text):
      return f'<p>{_inline(text)}</p>'
    case document.Listing(items):
      rendered = '\n'.join(f'<li>{_inline(item)}</li>' for item in items)
      return f'<ul>\n{rendered}\n</ul>'
    case document.Code(text):
      return f'<pre>{_code(text.strip(chr(10)))}</pre>'
    case document.Table():
      return _table(part)
    case document.Figure():
      return _figure(part)


def _table(table):
  numeric = markup.numeric_columns(table)
  rows = '\n'.join(_row(row, i in table.strong, numeric)
                   for i, row in enumerate(table.rows))
  label = _escape(f'Table: {markup.plain(table.caption).strip()}')
  # Short names of rows stay in view while the table scrolls.
  is_named = all(len(markup.plain(row[0]).strip()) <= _SHORT
                 for row in (table.header, *table.rows))
  named = ' class="named"' if is_named else ''
  region = f'class="scroll" role="region" tabindex="0" aria-label="{label}"'
  return f"""<div {region}>
<table{named}>
<caption><span>{_inline(table.caption)}</span></caption>
<thead>
{_row(table.header, False, numeric, is_header=True)}
</thead>
<tbody>
{rows}
</tbody>
</table>
</div>"""


def _row(row, is_strong, numeric, is_header=False):
  cells = []
  for i, cell in enumerate(row):
    text, length = _inline(cell), len(markup.plain(cell).strip())
    if is_strong and text:
      spans = markup.without_bold(markup.parse(cell.strip()))
      text = f'<strong>{_spans(spans)}</strong>'
    element = 'th' if length and (is_header or i == 0) else 'td'
    scope = f' scope="{"col" if is_header else "row"}"' * (element == 'th')
    classes = ['number'] * (i in numeric) + (
        ['short'] if length <= _SHORT else ['long'] * (length > _LONG))
    cells.append(f'<{element}{scope} class="{" ".join(classes)}">{text}'
                 f'</{element}>'.replace(' class=""', ''))
  return f'<tr>{"".join(cells)}</tr>'


def _figure(figure):
  picture = svg.inline(figure.svg, f'figure-{figure.name}',
                       _CONTROLS.sub('\ufffd', figure.alt))
  caption = figure.caption.strip() and (
      f'\n<figcaption>{_inline(figure.caption)}</figcaption>')
  return (f'<figure id="figure-{figure.name}">\n<div class="card">{picture}'
          f'</div>{caption}\n</figure>')


def _inline(text):
  return _spans(markup.parse(text.strip()))


def _spans(spans):
  return ''.join(map(_span, spans))


def _span(span):
  match span.kind:
    case 'text':
      return _escape(span.text)
    case 'code':
      return f'<code>{_code(span.text)}</code>'
    case 'bold':
      return f'<strong>{_spans(span.spans)}</strong>'
    case 'link':
      return f'<a href="{_escape(span.url)}">{_spans(span.spans)}</a>'


def _code(text):
  """Escapes code so that lines break between words, not after hyphens."""
  pieces, end = [], 0
  for match in _WORD.finditer(text):
    pieces += [_escape(text[end:match.start()]),
               f'<span>{_escape(match[0])}</span>']
    end = match.end()
  return ''.join(pieces) + _escape(text[end:])


def _escape(text):
  return html.escape(_CONTROLS.sub('\ufffd', text))
