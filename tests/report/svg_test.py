"""SVG text within pages."""

import re

import pytest

from moon_jax.report import svg

SVG = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="9pt"
 xmlns:xlink="http://www.w3.org/1999/xlink" version="1.1">
<metadata>2026-01-01</metadata>
<defs><path id="m1" d="M 0.123456 -1.5 L 2 3"/><clipPath id="c"/></defs>
<use xlink:href="#m1" x="1.23456" clip-path="url(#c)"/>
<text style="font: 700 11px 'A B', 'C', sans-serif">0.123456 &lt;b></text>
</svg>"""


def test_clean():
  assert re.sub(r'\s+', ' ', svg.clean(SVG)) == re.sub(r'\s+', ' ', """<svg
viewBox="0 0 9 9" width="9pt" version="1.1"
style="stroke-linejoin: round; stroke-linecap: butt"
xmlns="http://www.w3.org/2000/svg">
<defs><path id="m1" d="M 0.12 -1.5 L 2 3" /><clipPath id="c" /></defs>
<use x="1.23" clip-path="url(#c)" href="#m1" />
<text style="font: 700 11px sans-serif">0.123456 &lt;b&gt;</text> </svg> """)


def test_ids_have_the_prefix():
  inline = svg.inline(SVG.replace('<metadata>2026-01-01</metadata>', ''),
                      'figure-a', 'A "line" <b>')
  assert inline.startswith('<svg role="img" aria-label="A &quot;line&quot; '
                           '&lt;b&gt;" viewBox="0 0 9 9">')
  assert 'href="#figure-a-m1"' in inline
  assert 'clip-path="url(#figure-a-c)"' in inline
  assert re.findall(r'id="([^"]*)"', inline) == ['figure-a-m1', 'figure-a-c']
  assert 'xmlns' not in inline and 'xlink' not in inline


@pytest.mark.parametrize('content', [
    '<script>alert(1)</script>', '<style>* {color: red}</style>',
    '<a href="#b">b</a>', '<foreignObject><b>a</b></foreignObject>',
    '<g onclick="alert(1)"/>', '<g ONCLICK="alert(1)"/>',
    '<use href="https://example.org/a.svg#b"/>', '<image href="a.png"/>',
    '<path fill="url(https://example.org/a)"/>',
    '<path style="fill: url( \'a.svg#b\' )"/>',
    '<set attributeName="href" to="javascript:a"/>',
    '<animate attributeName="d"/>'])
def test_active_content_is_refused(content):
  with pytest.raises(ValueError, match="'figure-a' must not have scripts"):
    svg.inline(f'<svg viewBox="0 0 1 1">{content}</svg>', 'figure-a', 'alt')


@pytest.mark.parametrize('text, word', [
    ('', 'valid XML'), ('<svg>', 'valid XML'), ('<svg/>', 'viewBox'),
    ('<p viewBox="0"/>', '<p>')])
def test_other_texts_are_refused(text, word):
  with pytest.raises(ValueError, match=word):
    svg.inline(text, 'figure-a', 'alt')
