"""Pages as Markdown and HTML: complete, accessible, and without requests."""

import base64
import re

import pytest

from moon_jax.results import page as page_lib
from moon_jax.results.page import Figure, Page
from support import page_checks

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"/>'
FIGURE = Figure('a', SVG, 'MOON [above]', 'Of [x](https://y.org)')
ROWS = ({'method': '**MOON**', 'accuracy': '0.7 ± 0.1', 'empty': '',
         'command': '`--algorithm.mu=5|6`'},
        {'method': 'Fed|Avg', 'accuracy': '–', 'empty': '', 'command': ''})
PARTS = ['## Part 0', 'A **text** & `code`.',
         page_lib.table('Of `flags`', ROWS, [1]), '- one\n- two',
         '```\na <b>\n```', FIGURE, FIGURE._replace(name='b')]


def page(parts=tuple(PARTS), **fields):
  return Page('Results', 'SMOKE', parts)._replace(**fields)


def test_a_table_that_is_cut_off_has_a_sign_at_its_edges():
  """Shadows, over which covers scroll with the table; chosen on a phone."""
  rule, = re.findall(r'\n\.scroll \{(.*?)\}', page().html(), re.DOTALL)
  assert 'overflow-x: auto' in rule
  for side in 'left', 'right':
    assert re.search(rf'var\(--page\)[^,]*, transparent\) {side} [^,]*local',
                     rule)
    assert re.search(
        rf'var\(--edge\), transparent\) {side} [^,;]*no-repeat[,;]', rule)


def test_pages_are_accessible():
  text = page().html()
  assert not page_checks.errors(text)
  right = ' style="text-align:right"'
  for part in (
      'aria-label="Table: Of flags"',
      '<figcaption>Of <code>flags</code></figcaption>',
      f'<th scope="col">method</th>\n<th scope="col"{right}>accuracy</th>',
      # The second row is bold, and first cells name their rows.
      f'<th scope="row"><strong>Fed|Avg</strong></th>\n<td{right}>',
      '<code>--algorithm.mu=5|6</code>', 'alt="MOON [above]"',
      base64.b64encode(SVG.encode()).decode(),
      'Of <a href="https://y.org">x</a>'):
    assert part in text, part
  assert not page_checks.errors(page(['text']).html())


def test_lines_end_between_names_and_flags():
  """Of titles, names of rows and commands, which are long on a phone."""
  text = page([
      page_lib.table('c', [{'': 'cohort poc(candidates=2)', 'x': '1'}]),
      "```\nmoon-jax train --model=mlp --optimizer='sgd(a=1)'\n```"],
              title='Runs of /a/my_runs').html()
  assert not page_checks.errors(text)
  for part in (
      '<h1>Runs of /<wbr>a/<wbr>my_<wbr>runs</h1>',
      '>cohort poc(<wbr>candidates=2)</th>', 'moon-jax train '
      "<span>--model=mlp</span> <span>--optimizer='sgd(a=1)'</span>\n</code>"):
    assert part in text, part
  rule, = re.findall(r'\npre span \{(.*?)\}', text)
  assert 'inline-block' in rule and 'max-width: 100%' in rule


def test_markdown():
  text = page().markdown('a dir')
  assert text.startswith('# Results\n\n> **SMOKE**\n\n## Part 0\n\nA **text**')
  assert '''Of `flags`

| method | accuracy | command |
| --- | ---: | --- |
| **MOON** | 0.7 ± 0.1 | `--algorithm.mu=5\\|6` |
| **Fed\\|Avg** | **–** |  |
''' in text
  assert '![MOON [above]](a%20dir/a.svg)\\\nOf [x](https' in text


@pytest.mark.parametrize('cells, is_numeric', [
    (['1', '-2.5', '–'], True), (['0.7 ± 0.1', '+1.0 to 2.0', ''], True),
    (['2 of 3', '3'], True), (['2 of 3 (1 diverged)', '3'], False),
    (['-', '–'], False), (['mu 5'], False), (['5 s', '1,000'], True)])
def test_columns_of_numbers(cells, is_numeric):
  lines = page_lib.table('c', [{'x': cell} for cell in cells]).splitlines()
  assert (lines[3] == '| ---: |') == is_numeric


EVIL = '<script>alert("1")</script>\'"><img src=x onerror=alert(2)>&lt;\x00\x1b'


def test_all_texts_are_escaped():
  evil = page([
      *PARTS, f'## {EVIL}', EVIL, f'`{EVIL}` **{EVIL}**', f'- {EVIL}',
      f'[{EVIL}](https://x.org/"onclick="a)',
      f'[a](x"><script>)[b](javascript:{EVIL})', f'```\n{EVIL}\n```',
      page_lib.table(EVIL, [{EVIL: EVIL}, {EVIL: f'`{EVIL}`'}]),
      FIGURE._replace(name='c', alt=EVIL, caption=EVIL)],
              title=EVIL, banner=EVIL)
  assert not page_checks.errors(evil.html())
