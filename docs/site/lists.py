"""Lists as GitHub reads them, written as Python-Markdown reads them.

Python-Markdown needs four spaces before all that belongs to a list item, and a
blank line before a list that follows a paragraph, and before an item that
follows one of several blocks.
"""

import re

_ITEM = re.compile(r'( *)([-*+]|\d+[.)])( +)(?=\S)')
_FENCE = re.compile(r' *(```+|~~~+)([^`]*)$')


def indented(markdown: str) -> str:
  """Returns Markdown with lists of four spaces per level."""
  result, levels, fence = [], [], ''
  needs_blank = False  # before the next item
  for line in markdown.split('\n'):
    if not line.strip():
      result.append('')
      needs_blank = False
      continue
    is_block = bool(levels and result and not result[-1])  # of an item
    indent = len(line) - len(line.lstrip(' '))
    was_list = bool(levels)
    if not fence:
      while levels and indent < levels[-1]:
        levels.pop()
    margin = '    ' * len(levels)
    body = line[levels[-1]:] if levels else line
    marker = _FENCE.match(line)
    if fence:
      result.append(margin + body if body.strip() else '')
      if marker and marker[1].startswith(fence) and not marker[2].strip():
        fence, needs_blank = '', was_list
      continue
    if marker:
      fence = marker[1]
      word = marker[2].split()[:1]  # `python no-run` is python
      result.append(margin + body[:len(body) - len(body.lstrip())]
                    + fence + ''.join(word))
      continue
    item = _ITEM.match(body)
    if item and len(item[1]) < 4:
      if needs_blank and result[-1]:
        result.append('')
      levels.append((levels[-1] if levels else 0) + len(item[0]))
      result.append(margin + item[2] + ' ' + body[len(item[0]):])
      needs_blank = False
      continue
    result.append(margin + body)
    needs_blank = is_block or needs_blank or not (
        was_list or line.startswith(('#', '|', '    ')))
  return '\n'.join(result)
