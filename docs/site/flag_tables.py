"""Writes the tables of docs/flags.md from the flags.

python docs/site/flag_tables.py
"""

import pathlib
import re

from moon_jax.cli.help_page import number
from moon_jax.config import Config, FACTS, TOPICS


def tables(page: str) -> str:
  """Returns the text of docs/flags.md with the tables of its topics."""
  for title, names in TOPICS.items():
    rows = ''.join(map(_row, names))
    page = re.sub(rf'(\n## {title}\n[^|]*\|[^|]*\|[^|]*\|[^|]*\|\n\|[|-]*\n)'
                  r'(\|.*\n)*', lambda match: match[1] + rows, page)
  return page


def _row(name):
  facts, default = FACTS[name], getattr(Config, name)
  shown = (('off', 'on')[default] if isinstance(default, bool) else
           'empty' if default == '' else
           f'`{default}`' if isinstance(default, str) else number(default))
  text = re.sub(r'--\w+(=[\w.]+)?', r'`\g<0>`', facts['help'])
  text = re.sub(r'\(docs/(\w+\.md)\)', r'([\1](\1))', text)
  if facts['page']:
    text += f' See [{facts["page"].partition("#")[0]}]({facts["page"]}).'
  if facts['choices']:
    text += f' Values: {", ".join(f"`{x}`" for x in facts["choices"])}.'
  if facts['is_input']:
    text += ' *(the path is free; the content must not change)*'
  elif facts['is_free']:
    text += ' *(free)*'
  return f'| `--{name}` | {shown} | {text} |\n'


if __name__ == '__main__':
  _PAGE = pathlib.Path(__file__).parents[1] / 'flags.md'
  _PAGE.write_text(tables(_PAGE.read_text(encoding='utf-8')), encoding='utf-8')
