"""Renders a page as Markdown, as GitHub reads it."""

import re
import urllib.parse

from moon_jax.report import document
from moon_jax.report import markup

# Characters that would start markup. Underscores and brackets are literal in
# most places, where backslashes would make texts hard to read.
_SPECIAL = re.compile(r'[\\`*<~]|(?<![^\W_])_|_(?![^\W_])|\](?=[(:])'
                      r'|\[(?=\^)|&(?=#?\w+;)')
_SPECIAL_IN_ALT = re.compile(r'[\\`*<~_&\[\]]')
# What would start a list, a quotation, a heading or a reference.
_BLOCK_START = re.compile(
    r'^(\d{1,9}(?=[.)](?:\s|$))|(?=[-+]\s|[-+]+$|[>#=\[]))(.)')


def render(page: document.Page, figure_dir: str = '') -> str:
  """Returns a page as Markdown.

  Args:
    page: the page.
    figure_dir: directory of the files NAME.svg of its figures, relative to the
      document.

  Raises:
    TypeError, ValueError: if `document.validate` refuses the page.
  """
  document.validate(page)
  blocks = [f'# {_inline(page.title)}']
  if page.banner:
    blocks.append(f'> {_bold(markup.parse(page.banner))}')
  blocks += [_part(part, figure_dir) for part in page.lead]
  for section in page.sections:
    blocks.append(f'## {_inline(section.title)}')
    blocks += [_part(part, figure_dir) for part in section.parts]
  return '\n\n'.join(blocks) + '\n'


def _part(part, figure_dir):
  match part:
    case document.Text(text):
      return _block(text)
    case document.Listing(items):
      return '\n'.join(f'- {_block(item)}' for item in items)
    case document.Code(text):
      runs = re.findall('`+', text)
      fence = '`' * max(3, 1 + max(map(len, runs), default=0))
      return f'{fence}\n{text.rstrip()}\n{fence}'
    case document.Table():
      return f'{_block(part.caption)}\n\n{_table(part)}'
    case document.Figure():
      return _figure(part, figure_dir)


def _table(table):
  numeric = markup.numeric_columns(table)
  rows = [map(_cell, map(_inline, table.header)),
          ['---:' if i in numeric else '---' for i in range(len(table.header))]]
  for i, row in enumerate(table.rows):
    inline = _bold if i in table.strong else _join
    rows.append([_cell(inline(markup.parse(cell))) for cell in row])
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def _cell(text):
  return text.strip().replace('|', r'\|')


def _figure(figure, figure_dir):
  directory = urllib.parse.quote(figure_dir.rstrip('/'))
  path = f'{directory}/{figure.name}.svg' if directory else f'{figure.name}.svg'
  alt = _SPECIAL_IN_ALT.sub(r'\\\g<0>', ' '.join(figure.alt.split()))
  image = f'![{alt}]({path})'
  caption = figure.caption.strip()
  return f'{image}\n\n{_block(caption)}' if caption else image


def _block(text):
  """Returns a text that does not start another kind of block."""
  text = text.strip()
  is_text = text and markup.parse(text)[0].kind == 'text'
  text = _inline(text)
  return _BLOCK_START.sub(r'\1\\\2', text) if is_text else text


def _inline(text):
  return _join(markup.parse(text.strip()))


def _join(spans):
  text = ''
  for span in spans:
    if span.kind == 'link' and text.endswith('!'):
      text = text[:-1] + r'\!'  # ![label](url) would be a picture
    text += _span(span)
  return text


def _bold(spans):
  text = _join(markup.without_bold(spans)).strip()
  return text and f'**{text}**'


def _span(span):
  match span.kind:
    case 'text':
      return _SPECIAL.sub(r'\\\g<0>', span.text)
    case 'code':
      return f'`{span.text}`'
    case 'bold':
      return f'**{_join(span.spans).strip()}**'
    case 'link':
      return f'[{_join(span.spans)}]({span.url})'
