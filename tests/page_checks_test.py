"""The checks of pages fail on pages that violate a rule."""

import pytest

from moon_jax.results import page
from moon_jax.results.page import Page
from support import page_checks

GOOD = Page('Title', '', (
    '## Section', '[link](https://example.org)',
    page.table('Caption', [{'a': '1'}]))).html()


@pytest.mark.parametrize('old, new, word', [
    (' lang="en"', '', 'no lang'),
    ('<h1>Title</h1>', '', '0 elements h1'),
    ('<h2>Section</h2>', '<h3>S</h3>', 'skipped'),
    ('Section</h2>', '</h2>', 'empty heading'),
    ('<p>', '<p><img src="data:,">', 'alt'),
    ('<p>', '<p><img alt="a" src="//example.org/x.png">', 'request'),
    ('<p>', '<p style="background: url(https://example.org)">', 'loads'),
    ('href="https://example.org"', 'href="javascript:alert(1)"', 'link to'),
    ('<p>', '<p onclick="alert(1)">', 'script'),
    (' scope="row"', '', 'scope'),
    ('aria-label="Table: Caption"', '', 'focus'),
    ('<figcaption>Caption</figcaption>', '', 'caption'),
    ('</main>', '', 'closes'),
    ('body {', '@import "x.css"; body {', 'makes a request'),
    ('--text: #e9eaec', '--text: #777777', 'in set 1'),
    ('--ink:', '--more: #000000; --ink:', 'unknown or missing colours'),
    ('color: var(--text)', 'color: #000000', 'a colour is no variable'),
])
def test_bad_pages_have_an_error(old, new, word):
  assert GOOD.count(old) == 1 and not page_checks.errors(GOOD)
  found = page_checks.errors(GOOD.replace(old, new))
  assert any(word in error for error in found), found


def test_contrast():
  """Published values: https://webaim.org/resources/contrastchecker/."""
  assert page_checks.contrast('#000000', '#ffffff') == 21
  assert abs(page_checks.contrast('#ffffff', '#767676') - 4.54) < .005
