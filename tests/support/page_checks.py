"""Checks an HTML page against the rules of the report's pages.

The rules are those of WCAG 2.2 that a program can check (headings, language,
title, names of pictures and regions, headers of tables, contrast), and that a
page makes no request.
"""

from html.parser import HTMLParser
import itertools
import re
import unicodedata

_VOID = {'meta', 'link', 'br', 'hr', 'img', 'input', 'wbr'}
_LOADING = {'src', 'srcset', 'href', 'xlink:href', 'data', 'poster', 'action'}
# Pairs of colours and their least contrast (WCAG 2.2, 1.4.3 and 1.4.11).
_CONTRASTS = {(text, ground): 4.5 for text in ('text', 'link')
              for ground in ('page', 'surface', 'warning')} | {
                  ('text', 'edge'): 4.5, ('ink', 'paper'): 4.5,
                  ('line', 'page'): 3.}


def errors(page: str) -> list[str]:
  """Returns one line per violated rule; [] if there is none."""
  parser = _Parser()
  parser.feed(page)
  parser.close()
  return (parser.errors + _structure(parser)
          + style_errors(''.join(parser.styles)))


class _Parser(HTMLParser):
  """Collects elements, headings and texts."""

  def __init__(self):
    super().__init__(convert_charrefs=True)
    self.errors, self.elements, self.styles = [], [], []
    self.open = []  # [tag, text] of open elements
    self.texts = {}  # tag -> texts of its elements

  def handle_starttag(self, tag, attrs, is_closed=False):
    attributes = {name: value or '' for name, value in attrs}
    self.elements.append((tag, attributes))
    if not is_closed and tag not in _VOID:
      self.open.append([tag, ''])
    self._check(tag, attributes)

  def handle_startendtag(self, tag, attrs):
    self.handle_starttag(tag, attrs, is_closed=True)

  def handle_endtag(self, tag):
    if not self.open or self.open[-1][0] != tag:
      self.errors.append(f'</{tag}> closes {self.open[-1:]}')
      return
    _, text = self.open.pop()
    self.texts.setdefault(tag, []).append(' '.join(text.split()))
    if self.open:
      self.open[-1][1] += text

  def handle_data(self, data):
    if self.open and self.open[-1][0] == 'style':
      self.styles.append(data)
    if self.open:
      self.open[-1][1] += data

  def _check(self, tag, attributes):
    add = self.errors.append
    if tag == 'script' or any(name.startswith('on') for name in attributes):
      add(f'script in <{tag}>')
    if tag in ('iframe', 'object', 'embed', 'base', 'form'):
      add(f'<{tag}> is not allowed')
    for name in _LOADING & set(attributes):
      value = attributes[name].strip()
      if tag != 'a' and not value.startswith(('#', 'data:')):
        add(f'<{tag} {name}="{value}"> is a request')
      if tag == 'a' and re.match(r'(?!https?:|mailto:)[\w+.-]*:', value):
        add(f'a link to {value}')
    if 'url(' in attributes.get('style', ''):
      add(f'<{tag}> loads with its style')
    if tag == 'img' and not attributes.get('alt', '').strip():
      add('<img> without alt')
    if tag == 'th' and attributes.get('scope') not in ('col', 'row'):
      add('<th> without scope')
    if 'tabindex' in attributes and not (
        attributes['tabindex'] == '0' and attributes.get('role')
        and attributes.get('aria-label', '').strip()):
      add(f'<{tag}> has the focus without role and name')


def _structure(parser):
  tags = [tag for tag, _ in parser.elements]
  root = dict(parser.elements).get('html', {})
  metas = [attributes for tag, attributes in parser.elements if tag == 'meta']
  headings = [int(tag[1]) for tag in tags if re.fullmatch('h[1-6]', tag)]
  rules = {
      'no lang': root.get('lang'),
      'no title': any(parser.texts.get('title', ())),
      'no viewport': any('width=device-width' in meta.get('content', '')
                         for meta in metas if meta.get('name') == 'viewport'),
      f'{headings.count(1)} elements h1': headings.count(1) == 1,
      'not one main': tags.count('main') == 1,
      'a heading level is skipped': headings[:1] == [1] and all(
          b <= a + 1 for a, b in itertools.pairwise(headings)),
      'an empty heading': all(text for i in range(1, 7)
                              for text in parser.texts.get(f'h{i}', ())),
      'a table without caption': len([
          text for text in parser.texts.get('figcaption', ()) if text]
                                     ) == tags.count('table'),
      'a table without header': tags.count('thead') == tags.count('table'),
      'elements are not closed': not parser.open,
      'control characters': not any(
          unicodedata.category(c) == 'Cc' and not c.isspace()
          for texts in parser.texts.values() for text in texts for c in text),
  }
  return [rule for rule, is_kept in rules.items() if not is_kept]


def contrast(a: str, b: str) -> float:
  """Returns the contrast of two colours #rrggbb, from 1 to 21 (WCAG 2.2)."""

  def luminance(color):
    channels = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= .04045 else ((c + .055) / 1.055) ** 2.4
              for c in channels]
    return .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2]

  low, high = sorted((luminance(a), luminance(b)))
  return (high + .05) / (low + .05)


def style_errors(css: str) -> list[str]:
  """Returns what is wrong with the colours of a style sheet.

  All colours are variables of two sets, for light and dark screens, and each
  text has enough contrast to each background on which it may stand.
  """
  found = []
  if re.search(r'@import|url\(|https?://', css):
    found.append('the style sheet makes a request')
  blocks = re.findall(r':root\s*{[^}]*}', css)
  if re.search(r'#\w{6}', re.sub(r':root\s*{[^}]*}', '', css)):
    found.append('a colour is no variable')
  sets = [dict(re.findall(r'--(\w+):\s*(#\w{6})', block)) for block in blocks]
  for i, colors in enumerate(sets):
    colors = sets[0] | colors
    if colors.keys() != {name for pair in _CONTRASTS for name in pair}:
      found.append(f'unknown or missing colours in set {i}')
    found += [
        f'contrast of {a} and {b} is {contrast(colors[a], colors[b]):.2f} in '
        f'set {i}' for (a, b), least in _CONTRASTS.items()
        if contrast(colors[a], colors[b]) < least]
  return found
