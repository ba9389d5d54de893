"""The algorithm of the documentation, FedDyn, and the pages of all methods."""

import re
import sys

import jax
import pytest

import moon_jax as mj
from moon_jax.config.methods import METHODS
from support import federation as fed
from support.docs_pages import DOCS, module, ROOT

pytestmark = pytest.mark.docs


def test_it_is_the_built_in_method():
  """Whose client state is g_i / -alpha; papers_test.py has its reference."""
  ours, expected = (
      fed.Federation(feddyn(len(fed.SIZES), .1), num_lanes=2).train().state
      for feddyn in (module('docs/feddyn.py').feddyn, mj.feddyn))
  fed.assert_trees_close(ours.variables, expected.variables, atol=3e-6)
  fed.assert_trees_close(
      ours.clients, jax.tree.map(lambda d: -.1 * d, expected.clients))


def test_each_method_is_in_one_list_of_its_papers_and_code(monkeypatch):
  """Those whose code was read and not run have no link to golden values."""
  monkeypatch.setattr(sys, 'path', [str(DOCS / 'site'), *sys.path])
  import method_pages

  page = (DOCS / 'methods.md').read_text(encoding='utf-8')
  between = lambda begin, end: page.partition(begin)[2].partition(end)[0]
  remark = re.compile(r'\s*\((\[\w+\]\([^()]*\)|[^()])*\)')
  listed = lambda text: {
      *re.split(r',\s+(?:and\s+)?|\s+and\s+', remark.sub('', text))}
  rows = re.findall(r'^\| ([^|]*?) \|', between(
      '### Differences', '### Slips'), re.MULTILINE)[2:]
  compared = listed(', '.join(rows)) | listed(
      between('no difference of this kind for ', '.'))
  without = listed(', '.join(re.findall(
      r'^- (.*?):', between('### Methods without released code', '\n## '),
      re.MULTILINE)))
  not_compared = listed(between(
      'differences from the code of the authors of ', '.\n'))
  found = [*compared, *without, *not_compared, METHODS['centralized'].title]
  assert sorted(found) == sorted(x.title for x in METHODS.values())
  assert listed(between('read and did not run the\ncode of ', '.')) == {
      x.title for name, x in METHODS.items()
      if x.title in compared and not method_pages.released_code(name)}


def test_pages_of_methods_are_generated(monkeypatch):
  """By docs/site/method_pages.py."""
  monkeypatch.setattr(sys, 'path', [str(DOCS / 'site'), *sys.path])
  import method_pages

  for path, made in (
      ('docs/methods.md', method_pages.tables),
      ('README.md', method_pages.readme),
      ('tests/papers/golden/README.md', lambda _: method_pages.golden_page())):
    text = (ROOT / path).read_text(encoding='utf-8')
    assert made(text) == text
