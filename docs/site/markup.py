"""HTML of pages: formulas in MathML; tables and code that fit on phones."""

import html
import re

from latex2mathml import converter

# What pymdownx.arithmatex makes of formulas.
_MATH = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# Formulas of notebooks, which have no element, and elements without formulas.
_DOLLARS = re.compile(r'(\$\$?)(?=\S)([^$]+?)(?<=\S)\1')
_NO_TEXT = re.compile(r'(<(?:pre|script|style|code)\b.*?'
                      r'</(?:pre|script|style|code)>)', re.DOTALL)
# Scripts of notebooks that would load others: diagrams and formulas.
_LOADING = re.compile(
    r'<script\b(?:(?!</script>).)*?(?:mermaid|mathjax|src="")'
    r'(?:(?!</script>).)*</script>', re.DOTALL | re.IGNORECASE)
_CODE = re.compile(r'<code>([^<\n]+)</code>')
_COMMANDS = re.compile(  # and other text, in blocks
    r'(<div class="language-text[^>]*><pre>(?:<span></span>)?<code>)(.*?)'
    r'(</code></pre>)', re.DOTALL)
_COLUMNS = re.compile(r'\S {3,}\S')  # of a table that a command prints
_PAGE_LINK = re.compile(r'(?<=href=")([\w./-]+)\.md(?=["#])')
_TABLE = re.compile(r'<table>.*?</table>', re.DOTALL)
_CELL = re.compile(r'<td([^>]*)>(.*?)</td>', re.DOTALL)
_HEAD = re.compile(r'<th[^>]*>(.*?)</th>', re.DOTALL)
_TAG = re.compile(r'<[^>]*>')
_BREAKS = re.compile(r'(?<=[=/,])')
_MAX_CHARACTERS = 36  # of a word of code, on one line of a phone
_LONG_CELL = 80  # characters; tables with longer cells become lists on phones


def fit_page(content: str) -> str:
  """Returns the content of a page with MathML, whole words and labels."""
  content = _CODE.sub(lambda match: f'<code>{_words(match[1])}</code>', content)
  content = _COMMANDS.sub(_block, content)
  content = _TABLE.sub(lambda match: _labelled(match[0]), content)
  return _MATH.sub(
      lambda match: _mathml(match[2], match[1] == 'div'), content)


def _block(match):
  """Returns a block of text, whose lines break unless it has columns."""
  start, text, end = match.groups()
  if _COLUMNS.search(text):
    return start.replace('class="', 'class="columns ', 1) + text + end
  return start + '\n'.join(map(_words, text.split('\n'))) + end


def fit_notebook(content: str) -> str:
  """Returns the content of a notebook with MathML and without requests."""
  content = _PAGE_LINK.sub(r'\1.html', content)
  parts = _NO_TEXT.split(_LOADING.sub('', content))  # text, element, text, ...
  parts[::2] = [_DOLLARS.sub(lambda match: _mathml(
      match[2], match[1] == '$$'), part) for part in parts[::2]]
  return ''.join(parts)


def _mathml(formula, is_block):
  return converter.convert(html.unescape(formula).strip(),
                           display='block' if is_block else 'inline')


def _words(code):
  """Returns code in which lines break at spaces, not after a hyphen.

  Words that are too long for a phone break after = / and commas, too.
  """
  return ' '.join(
      '<wbr>'.join(f'<span class="word">{part}</span>' for part in _parts(word))
      if '-' in word else word for word in code.split(' '))


def _parts(word):
  if len(html.unescape(word)) <= _MAX_CHARACTERS:
    return [word]
  return _BREAKS.split(word)


def _labelled(table):
  """Returns a table with long cells as a list on phones, with labels."""
  if max((len(_TAG.sub('', cell[2])) for cell in _CELL.finditer(table)),
         default=0) < _LONG_CELL:
    return table
  labels = [_TAG.sub('', head) for head in _HEAD.findall(table)]
  rows = table.split('<tr>')
  for i, row in enumerate(rows):
    names = iter(labels)
    rows[i] = _CELL.sub(
        lambda cell: f'<td{cell[1]} data-label="{next(names, "")}">'
        f'{cell[2]}</td>', row)
  return f'<div class="stacked">{"<tr>".join(rows)}</div>'
