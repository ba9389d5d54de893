"""Pages as Markdown."""

import pytest

from moon_jax.report import document
from moon_jax.report import markdown

PAGE = document.Page(
    'Results', 'SMOKE BUDGET: **6** rounds.', (document.Text('A `lead`.'),), (
        document.Section('Accuracy', (
            document.Table('Of `a|b`', ('method', 'acc|uracy', 'flags'), (
                ('**MOON**', '0.7 ± 0.1', '`--mu=5|6`'), ('Fed|Avg', '', 'x')),
                           frozenset({0})),
            document.Listing(('one', '**two**')),
            document.Code('```\nx | y\n'))),
        document.Section('Curves', (document.Figure(
            'curves', '<svg/>', 'MOON [red] is_above', 'A caption.'),))))

MARKDOWN = r"""# Results

> **SMOKE BUDGET: 6 rounds.**

A `lead`.

## Accuracy

Of `a|b`

| method | acc\|uracy | flags |
| --- | ---: | --- |
| **MOON** | **0.7 ± 0.1** | **`--mu=5\|6`** |
| Fed\|Avg |  | x |

- one
- **two**

````
```
x | y
````

## Curves

![MOON \[red\] is\_above](my%20figures/curves.svg)

A caption.
"""


def test_pages():
  assert markdown.render(PAGE, 'my figures/') == MARKDOWN
  assert '](curves.svg)' in markdown.render(PAGE)
  without = markdown.render(PAGE._replace(banner=''))
  assert '>' not in without.splitlines()[2]


@pytest.mark.parametrize('text, expected', [
    ('a_b __init__ _c', r'a_b \_\_init\_\_ \_c'),
    ('<script>alert(1)</script>', r'\<script>alert(1)\</script>'),
    ('2 * 3 * 4', r'2 \* 3 \* 4'), ('~5 to ~6', r'\~5 to \~6'),
    ('&amp; & b', r'\&amp; & b'), ('a\\b', r'a\\b'),
    ('[a](javascript:b)', r'\[a\](javascript:b)'), ('x [0, 1]', 'x [0, 1]'),
    ('see![a](b.md)', r'see\![a](b.md)'), ('[a](b.md)', '[a](b.md)'),
    ('# a', r'\# a'), ('- a', r'\- a'), ('-0.5 is', '-0.5 is'), ('+', r'\+'),
    ('> a', r'\> a'), ('12. a', r'12\. a'), ('12.5 a', '12.5 a'),
    ('[a]: b', r'\[a\]: b'), ('**- a**', '**- a**'), ('`# a`', '`# a`')])
def test_texts_are_literal(text, expected):
  page = document.Page('T', '', (document.Text(text),), ())
  assert markdown.render(page) == f'# T\n\n{expected}\n'


def test_invalid_pages_are_refused():
  with pytest.raises(ValueError, match='titles'):
    markdown.render(PAGE._replace(title=''))
