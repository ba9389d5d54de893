"""The markup of texts: `code` in backticks, **bold** and [label](url).

Everything else is literal. So are links to other schemes than http, https and
mailto, because browsers would run javascript:.
"""

import re
from typing import NamedTuple

from moon_jax.report import document


class Span(NamedTuple):
  """A piece of a text."""

  kind: str  # 'text', 'code', 'bold' or 'link'
  text: str = ''  # of kinds 'text' and 'code'
  spans: tuple['Span', ...] = ()  # the content of 'bold', the label of 'link'
  url: str = ''  # of kind 'link'


_CODE = r'`(?P<code>[^`]+)`'
_BOLD = r'\*\*(?P<bold>(?:`[^`]+`|[^*`]|\*(?!\*))+)\*\*'
_LINK = (r'\[(?P<label>[^\[\]]+)\]\((?P<url>(?:https?://|mailto:|'
         r'(?!//|[^/?#()]*:))[^()\s\x00-\x20\x7f]+)\)')
_MARKUP = re.compile(f'{_CODE}|{_BOLD}|{_LINK}')


def parse(text: str) -> tuple[Span, ...]:
  """Returns the pieces of a text. White space of any length becomes a space."""
  text = re.sub(r'\s+', ' ', text)
  spans, end = [], 0
  for match in _MARKUP.finditer(text):
    if match.start() > end:
      spans.append(Span('text', text[end:match.start()]))
    spans.append(_span(match))
    end = match.end()
  if end < len(text):
    spans.append(Span('text', text[end:]))
  return tuple(spans)


def _span(match):
  if match['code']:
    return Span('code', match['code'])
  if match['bold']:
    return Span('bold', spans=parse(match['bold']))
  return Span('link', spans=parse(match['label']), url=match['url'])


def plain(text: str) -> str:
  """Returns a text without its markup; links become their labels."""
  return _plain(parse(text))


def _plain(spans):
  return ''.join(span.text or _plain(span.spans) for span in spans)


def without_bold(spans: tuple[Span, ...]) -> tuple[Span, ...]:
  """Returns the pieces with the content of bold ones instead of them."""
  flat = []
  for span in spans:
    inner = without_bold(span.spans)
    flat += inner if span.kind == 'bold' else [span._replace(spans=inner)]
  return tuple(flat)


_NUMBER = re.compile(
    r'[\[(]?[-+−±<>≤≥≈~]?\s?(\d[\d,]*\.?\d*|\.\d+)(e[-+−]?\d+)?\s?'
    r'(%|s|h|min|pp|x|×)?(\s?(±|\(|\[|/|–|,|of\b|to\b)[^A-Za-z]*)?')
_MISSING = {'', '-', '–', '—', 'n/a', 'nan'}


def numeric_columns(table: document.Table) -> frozenset[int]:
  """Returns the indices of the columns that contain only numbers.

  Numbers may have a sign, a unit, a spread and an interval, as in
  `+0.3 [-0.1, 0.7]`. Some but not all cells may be empty, dashes or n/a.
  """
  numeric = set()
  for i in range(len(table.header)):
    cells = {plain(row[i]).strip() for row in table.rows} - _MISSING
    if cells and all(map(_NUMBER.fullmatch, cells)):
      numeric.add(i)
  return frozenset(numeric)
