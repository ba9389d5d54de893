"""The navigation of the site, which is the list of pages in docs/README.md."""

import pathlib
import re

PAGES = pathlib.Path(__file__).parents[1] / 'README.md'
_LINK = re.compile(r'\[([^\]]+)\]\(([\w/.]+)\)')


def groups(text: str) -> list[dict]:
  """Returns the groups of pages as mkdocs reads them: [{title: [...]}].

  Args:
    text: Markdown with a section and a table for each group. The first column
      has a link to a page, or a title, a colon and links to several.
  """
  result = []
  for section in re.split(r'^## ', text, flags=re.MULTILINE)[1:]:
    title, _, body = section.partition('\n')
    entries: list[dict] = []
    for cell in re.findall(r'^\| ([^|]*\][^|]*) \|', body, re.MULTILINE):
      links = [{name: path} for name, path in _LINK.findall(cell)]
      entries += links if len(links) == 1 else [{cell.split(':')[0]: links}]
    result.append({title: entries})
  return result
