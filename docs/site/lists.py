"""Lists as GitHub reads them, written as Python-Markdown reads them.

Python-Markdown needs four spaces before all that belongs to a list item, and a
blank line between a paragraph and a list.
"""

import re

_ITEM = re.compile(r'( *)([-*+]|\d+[.)])( +)(?=\S)')
_FENCE = re.compile(r' *(```+|~~~+)([^`]*)$')


def indented(markdown: str) -> str:
  """Returns Markdown with lists of four spaces per level."""
  result, levels, fence = [], [], ''
  was_text = False  # whether the line before is text of a paragraph
  for line in markdown.split('\n'):
    indent = len(line) - len(line.lstrip(' '))
    if not line.strip():
      result.append('')
      was_text = False
      continue
    was_list = bool(levels)
    if not fence:
      while levels and indent < levels[-1]:
        levels.pop()
    depth = len(levels)
    body = line[levels[-1]:] if levels else line
    marker = _FENCE.match(line)
    if fence:
      result.append('    ' * depth + body if body.strip() else '')
      if marker and marker[1].startswith(fence) and not marker[2].strip():
        fence = ''
        result += [''] * bool(levels)  # the next item is not part of this one
      continue
    if marker:
      fence, was_text = marker[1], False
      word = marker[2].split()[:1]  # `python no-run` is python
      result.append('    ' * depth + body[:len(body) - len(body.lstrip())]
                    + fence + ''.join(word))
      continue
    item = _ITEM.match(body)
    if item and len(item[1]) < 4:
      if was_text and not was_list:
        result.append('')
      levels.append((levels[-1] if levels else 0) + len(item[0]))
      result.append('    ' * depth + item[2] + ' ' + body[len(item[0]):])
      was_text = True
      continue
    result.append('    ' * depth + body)
    was_text = not line.startswith(('#', '|', '    '))
  return '\n'.join(result)
