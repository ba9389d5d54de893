"""The algorithm of the documentation, FedDyn, and the pages of all methods."""

import sys

import jax
import pytest

import moon_jax as mj
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
