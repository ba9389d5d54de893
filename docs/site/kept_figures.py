"""Figures of kept runs that are drawn for the site and not committed.

`<!-- figure: NAME TEXT -->` in a page becomes the figure NAME beside the page,
described by TEXT.
"""

import io
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from experiments import contact_sheet
from experiments.full import questions, report

_FIGURE = re.compile(r'^<!-- figure: (\S+) (.+) -->$', re.MULTILINE)


def inserted(markdown: str) -> str:
  """Returns a page with its figures."""
  return _FIGURE.sub(r'![\2](\1)', markdown)


def drawn(markdown: str) -> dict[str, bytes]:
  """Returns the figures of a page, as PNG files by name."""
  return {name: _png(name) for name, _ in _FIGURE.findall(markdown)}


def _png(name):
  file = io.BytesIO()
  if name == 'augmentation.png':
    contact_sheet.draw(
        [*map(contact_sheet.panel, contact_sheet.DATASETS)], file)
  else:
    question, = (question for question in questions.QUESTIONS
                 if name == f'full/{question.name}.png')
    report.draw_question(question, file)
  return file.getvalue()
