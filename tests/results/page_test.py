"""Pages as Markdown and HTML: complete, accessible, and without requests."""

import base64
from html.parser import HTMLParser

import pytest

from moon_jax.results import page as page_lib
from moon_jax.results.page import Figure
from moon_jax.results.page import Page
import page_checks

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"/>'
FIGURE = Figure('a', SVG, 'MOON is [above]', 'Of [x](https://y.org)')
HEADER = ('method', 'accuracy', '')
ROWS = (('**MOON**', '0.7 ± 0.1', '`--mu=5|6`'), ('Fed|Avg', '–', ''))
TABLE = page_lib.table('Of `flags`', HEADER, ROWS, [1])
PARTS = ['## Part 0', page_lib.text('A **text** & `code`.'), TABLE,
         page_lib.listing(['one', 'two']), page_lib.code('a <b>\n  --c=1\n'),
         FIGURE, FIGURE._replace(name='b')]


def page(parts=tuple(PARTS), **fields):
  return Page('Results', 'SMOKE', parts)._replace(**fields)


class Elements(HTMLParser):
  """Lists (tag, attributes, text up to the next tag)."""

  def __init__(self, text):
    super().__init__()
    self.all = []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.all.append([tag, dict(attrs), ''])

  def handle_data(self, data):
    if self.all:
      self.all[-1][2] += data

  def named(self, tag):
    return [element for element in self.all if element[0] == tag]


@pytest.mark.parametrize('num_sections', [0, 1, 5])
def test_pages_have_no_errors(num_sections):
  text = page(['lead', *(PARTS if num_sections else ()), *(
      f'## Part {i}' for i in range(1, num_sections))]).html()
  assert not page_checks.errors(text)
  assert ('<nav' in text) == (num_sections == 5)
  assert text.count('<h2') == num_sections


def test_cells():
  cells = [(tag, attributes.get('scope'), attributes.get('class'))
           for tag, attributes, _ in Elements(page().html()).all
           if tag in ('th', 'td')]
  assert cells == [
      ('th', 'col', None), ('th', 'col', 'number'), ('th', 'col', None),
      ('th', 'row', None), ('td', None, 'number'), ('td', None, None),
      ('th', 'row', None), ('td', None, 'number'), ('td', None, None)]
  text = page().html()
  assert '<code>--mu=5|6</code>' in text
  assert '<strong>Fed|Avg</strong>' in text  # the row in bold
  assert '<caption><span>Of <code>flags</code></span></caption>' in text


def test_regions_and_figures_are_named():
  elements = Elements(page().html())
  region, = (a for _, a, _ in elements.all if a.get('role') == 'region')
  assert region['aria-label'] == 'Table: Of flags'
  first, second = elements.named('img')
  assert first[1]['alt'] == 'MOON is [above]'
  assert base64.b64decode(
      first[1]['src'].partition('base64,')[2]).decode() == SVG
  # Figures that follow one another are side by side.
  assert page().html().count('class="figures"') == 1
  assert '<figcaption>Of <a href="https://y.org">x</a></figcaption>' in (
      page().html())


def test_markdown():
  text = page().markdown('a dir')
  assert text.startswith('# Results\n\n> **SMOKE**\n\n## Part 0\n\nA **text**')
  assert '''Of `flags`

| method | accuracy |  |
| --- | ---: | --- |
| **MOON** | 0.7 ± 0.1 | `--mu=5\\|6` |
| **Fed\\|Avg** | **–** |  |
''' in text
  assert '![MOON is \\[above\\]](a%20dir/a.svg)\n\nOf [x](https' in text
  assert '- one\n- two' in text and '```\na <b>\n  --c=1\n```' in text


@pytest.mark.parametrize('content, expected', [
    ('a_b _c_ 2*3', r'a_b \_c\_ 2\*3'), ('`a_ *b`', '`a_ *b`'),
    ('a\n  b', 'a b'), ('<b> \\', r'\<b> \\'), ('a `', r'a \`'),
    ('[0, 1] [a](b)', '[0, 1] [a](b)')])
def test_texts_are_literal_but_for_their_markup(content, expected):
  assert page_lib.text(content) == expected


@pytest.mark.parametrize('cells, is_numeric', [
    (['1', '-2.5', '–'], True), (['0.7 ± 0.1', '+1.0 to 2.0', ''], True),
    (['2 of 3', '3'], True), (['2 of 3 (1 diverged)', '3'], False),
    (['', ''], False), (['mu 5'], False), (['5 s', '1,000'], True)])
def test_columns_of_numbers(cells, is_numeric):
  lines = page_lib.table('c', ('x',), [(cell,) for cell in cells]).splitlines()
  assert (lines[3] == '| ---: |') == is_numeric


EVIL = '<script>alert("1")</script>\'"><img src=x onerror=alert(2)>&lt;\x00\x1b'


@pytest.mark.parametrize('evil', [
    page(title=EVIL), page(banner=EVIL),
    *(page([*PARTS, *parts]) for parts in (
        ['## ' + page_lib.text(EVIL)] * 5, [page_lib.text(EVIL)],
        [page_lib.text(f'`{EVIL}` **{EVIL}**')],
        [page_lib.text(f'[{EVIL}](https://x.org/"onclick="a)')],
        [page_lib.text(f'[a](x"><script>)[b](javascript:{EVIL})')],
        [page_lib.listing([EVIL])], [page_lib.code(EVIL)],
        [page_lib.table(EVIL, (EVIL,), [(EVIL,), (f'`{EVIL}`',)])],
        [FIGURE._replace(name='c', alt=EVIL, caption=EVIL)]))])
def test_all_texts_are_escaped(evil):
  text = evil.html()
  assert not page_checks.errors(text)
  elements = Elements(text)
  assert not elements.named('script')
  assert all(a['src'].startswith('data:') for _, a, _ in elements.named('img'))
  assert not [a for _, a, _ in elements.all if {'onerror', 'onclick'} & set(a)]
  assert '\x00' not in text and '\x1b' not in text
