"""The markup of texts is code, bold and links, and nothing else."""

import pytest

from moon_jax.report import document
from moon_jax.report import markup
from moon_jax.report.markup import Span


def test_spans():
  assert markup.parse('a `b*c` **d `e`** [f `g`](https://h.org/i_(j)') == (
      Span('text', 'a '), Span('code', 'b*c'), Span('text', ' '),
      Span('bold', spans=(Span('text', 'd '), Span('code', 'e'))),
      Span('text', ' [f '), Span('code', 'g'),
      Span('text', '](https://h.org/i_(j)'))
  assert markup.parse('see [the **paper**](docs/a.md#b),\n\n twice') == (
      Span('text', 'see '),
      Span('link', spans=(Span('text', 'the '),
                          Span('bold', spans=(Span('text', 'paper'),))),
           url='docs/a.md#b'), Span('text', ', twice'))


@pytest.mark.parametrize('text', [
    '', '**', '****', '`', '``', '2 * 3 ** 4', '[a]', '[](b)', '[a]()',
    '[a](b c)', '[a](javascript:alert(1))', '[a](JavaScript:b)',
    '[a](//example.org)', '[a](data:text/html,b)', '[a](\x01javascript:b)',
    '[a](vbscript:b)',
    '<b>a</b>', '_a_', '![a'])
def test_other_texts_are_literal(text):
  assert all(span.kind == 'text' for span in markup.parse(text))
  assert markup.plain(text) == text


def test_plain_and_without_bold():
  text = '**a `b`** [**c**](d)'
  assert markup.plain(text) == 'a b c'
  assert markup.without_bold(markup.parse(text)) == (
      Span('text', 'a '), Span('code', 'b'), Span('text', ' '),
      Span('link', spans=(Span('text', 'c'),), url='d'))


@pytest.mark.parametrize('cells, is_numeric', [
    (('1', '-2', '+3.5', '−4', '1,234.5', '.5', '1e-3'), True),
    (('0.691 ± 0.004', '69.1% ± 0.4%', '1.2 (0.3)', '—', ''), True),
    (('+0.3 [−0.1, 0.7]', '[−0.1, 0.7]', '(1, 2)'), True),
    (('**0.7**', '`3`', '3 of 5', '< 0.001', '12 s', '3.1x', '1/3'), True),
    (('', '—'), False), ((), False), (('1', 'MOON'), False),
    (('1 epoch',), False), (('cifar10',), False), (('10 clients',), False)])
def test_numeric_columns(cells, is_numeric):
  table = document.Table('c', ('m', 'x'), tuple(('a', cell) for cell in cells))
  assert markup.numeric_columns(table) == ({1} if is_numeric else set())
