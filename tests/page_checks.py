"""Checks an HTML page against the rules of the report's pages.

The rules are those of WCAG 2.2 that a program can check (headings, language,
title, names of pictures and regions, headers of tables, contrast), and that a
page makes no request.
"""

from html.parser import HTMLParser
import itertools
import re
import unicodedata

_VOID = {'meta', 'link', 'br', 'hr', 'img', 'input'}
_LOADING = {'src', 'srcset', 'href', 'xlink:href', 'data', 'poster', 'action'}
_TEXT_CONTRAST, _LINE_CONTRAST = 4.5, 3.


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
          text for text in parser.texts.get('caption', ()) if text]
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
  """Returns the pairs of colours of a style sheet with too little contrast.

  Every colour of text is checked with every background that is a variable, in
  both sets of variables. A rule whose background is not a variable is checked
  by itself. Lines are checked with the first background, which is the page's.
  """
  found = []
  if re.search(r'@import|url\(|https?://', css):
    found.append('the style sheet makes a request')
  sets = [dict(re.findall(r'--(\w+):\s*(#\w{6})', block))
          for block in re.findall(r':root\s*{([^}]*)}', css)]
  rules = [_declarations(rule) for rule in re.findall(r'{([^{}]*)}', css)]
  for i in range(max(1, len(sets))):
    variables = {name: value for colors in sets[:1] + sets[i:i + 1]
                 for name, value in colors.items()}
    pairs = _pairs(rules, lambda value: [
        variables[name] if name else literal for name, literal in re.findall(
            r'var\(--(\w+)\)|(#\w{6})', value)])
    found += [f'contrast of {a} and {b} is {contrast(a, b):.2f} in set {i}'
              for a, b, least in sorted(pairs) if contrast(a, b) < least]
  return found


def _declarations(rule):
  return [tuple(map(str.strip, declaration.split(':', 1)))
          for declaration in rule.split(';') if ':' in declaration
          and not declaration.strip().startswith('--')]


def _pairs(rules, colors_of):
  """Returns triples of a colour, its background and the least contrast."""
  find = lambda rule, pattern: [
      color for name, value in rule if re.fullmatch(pattern, name)
      for color in colors_of(value)]
  is_variable = lambda rule: any(
      name.startswith('background') and 'var(' in value for name, value in rule)
  grounds = [color for rule in rules if is_variable(rule)
             for color in find(rule, 'background.*')]
  pairs = set()
  for rule in rules:
    behind = (grounds if is_variable(rule) else
              find(rule, 'background.*') or grounds)
    pairs |= {(color, ground, _TEXT_CONTRAST)
              for color in find(rule, 'color') for ground in behind}
    pairs |= {(line, ground, _LINE_CONTRAST)
              for line in find(rule, 'border.*|outline')
              for ground in grounds[:1]}
  return pairs
