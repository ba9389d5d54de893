"""Pages as HTML: complete, accessible, and without requests."""

from html.parser import HTMLParser

import pytest

from moon_jax.report import document
from moon_jax.report import html
import page_checks

SVG = ('<svg viewBox="0 0 9 9"><defs><path id="p" d="M 0 0 L 9 9"/></defs>'
       '<use href="#p"/></svg>')
TABLE = document.Table('Of `flags`', ('method', 'accuracy', ''), (
    ('**MOON**', '0.7 ± 0.1', '`--mu=5`'), ('FedAvg', '—', '')), frozenset({0}))
FIGURE = document.Figure('a', SVG, 'MOON is above', 'Of [x](https://y.org)')
PARTS = (document.Text('A **text** & `code`.'), TABLE,
         document.Listing(('one', 'two')), document.Code('a <b>\n  --c=1\n'),
         FIGURE, FIGURE._replace(name='b', caption=''))


def page(num_sections=1, parts=PARTS, **fields):
  return document.Page('Results', 'SMOKE', (document.Text('lead'),), tuple(
      document.Section(f'Part {i}', parts if i == 0 else ())
      for i in range(num_sections)))._replace(**fields)


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
  text = html.render(page(num_sections))
  assert not page_checks.errors(text)
  assert ('<nav' in text) == (num_sections == 5)
  assert text.count('<h2') == num_sections


def test_cells():
  cells = [(tag, attributes.get('scope'), 'number' in attributes['class'],
            text.strip())
           for tag, attributes, text in Elements(html.render(page())).all
           if tag in ('th', 'td')]
  assert cells == [
      ('th', 'col', False, 'method'), ('th', 'col', True, 'accuracy'),
      ('td', None, False, ''), ('th', 'row', False, ''), ('td', None, True, ''),
      ('td', None, False, ''), ('th', 'row', False, 'FedAvg'),
      ('td', None, True, '—'), ('td', None, False, '')]
  text = html.render(page())
  assert '<strong>MOON</strong>' in text  # not twice
  assert '<strong>0.7 ± 0.1</strong>' in text
  assert '<strong><code><span>--mu=5</span></code></strong>' in text


def test_short_names_of_rows_stay_in_view():
  assert '<table class="named">' in html.render(page())
  long = TABLE._replace(rows=(('a name of more than 20 characters', '', ''),),
                        strong=frozenset())
  assert '<table>' in html.render(page(parts=(long,)))


def test_regions_and_figures_are_named():
  elements = Elements(html.render(page()))
  region, = [a for _, a, _ in elements.all if a.get('role') == 'region']
  assert region['tabindex'] == '0' and region['aria-label'] == 'Table: Of flags'
  assert [a['aria-label'] for _, a, _ in elements.named('svg')] == [
      'MOON is above'] * 2
  assert [a['id'] for _, a, _ in elements.named('path')] == [
      'figure-a-p', 'figure-b-p']
  assert len(elements.named('figcaption')) == 1
  # The two figures follow one another, so they share a row.
  assert [a['class'] for _, a, _ in elements.named('div')] == [
      'scroll', 'figures', 'card', 'card']


def test_without_a_banner():
  assert 'class="banner"' in html.render(page())
  assert 'class="banner"' not in html.render(page(banner=''))


EVIL = '<script>alert("1")</script>\'"><img src=x onerror=alert(2)>&lt;\x00\x1b'


@pytest.mark.parametrize('evil', [
    page(title=EVIL), page(banner=EVIL),
    page(sections=tuple(document.Section(EVIL, ()) for _ in range(5))),
    *(page(parts=(part,)) for part in (
        document.Text(EVIL), document.Text(f'`{EVIL}` **{EVIL}**'),
        document.Text(f'[{EVIL}](https://x.org/"onclick="a)'),
        document.Text(f'[a](x"><script>)[b](javascript:{EVIL})'),
        document.Listing((EVIL,)), document.Code(EVIL),
        TABLE._replace(caption=EVIL), TABLE._replace(header=(EVIL,) * 3),
        TABLE._replace(rows=((EVIL,) * 3, (f'`{EVIL}`',) * 3)),
        FIGURE._replace(alt=EVIL), FIGURE._replace(caption=EVIL)))])
def test_all_texts_are_escaped(evil):
  text = html.render(evil)
  assert not page_checks.errors(text)
  elements = Elements(text)
  assert not elements.named('script') and not elements.named('img')
  assert not [a for _, a, _ in elements.all if {'onerror', 'onclick'} & set(a)]
  assert '\x00' not in text and '\x1b' not in text


def test_active_pictures_are_refused():
  picture = SVG.replace('<defs>', '<script>alert(1)</script><defs>')
  with pytest.raises(ValueError, match="'figure-a' must not have scripts"):
    html.render(page(parts=(FIGURE._replace(svg=picture),)))


def test_lines_do_not_break_within_flags():
  code = 'python -m x --mu=5 \\\n  --a-b=<c> --' + 'd' * 40
  text = html.render(page(parts=(document.Code(code),)))
  assert ('<pre>python <span>-m</span> x <span>--mu=5</span> \\\n  '
          '<span>--a-b=&lt;c&gt;</span> --' + 'd' * 40 + '</pre>') in text


def test_dark_screens_have_all_colours():
  assert set(html.stylesheet.LIGHT) == set(html.stylesheet.DARK)
