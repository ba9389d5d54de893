"""Pages of the report: titles, texts, tables and figures without a format.

`moon_jax.report.html` and `moon_jax.report.markdown` render a page. All texts
except `Code.text`, `Figure.name`, `Figure.svg` and `Figure.alt` may contain the
markup of `moon_jax.report.markup`: `code` in backticks, **bold** and
[label](url).
"""

import re
from typing import NamedTuple
from typing import TypeAlias


class Text(NamedTuple):
  """A paragraph."""

  text: str


class Listing(NamedTuple):
  """A list with bullets."""

  items: tuple[str, ...]


class Code(NamedTuple):
  """Preformatted text, such as commands."""

  text: str


class Table(NamedTuple):
  """A table whose first column names its rows."""

  caption: str
  header: tuple[str, ...]
  rows: tuple[tuple[str, ...], ...]
  strong: frozenset[int] = frozenset()  # indices of the rows in bold


class Figure(NamedTuple):
  """A picture."""

  name: str  # stem of the file, unique in the page
  svg: str  # the content of an SVG file
  alt: str  # what the picture shows, for readers who do not see it
  caption: str


Part: TypeAlias = Text | Listing | Code | Table | Figure


class Section(NamedTuple):
  """A heading and what follows it."""

  title: str
  parts: tuple[Part, ...]


class Page(NamedTuple):
  """A document."""

  title: str
  banner: str  # one line about the budget, shown in large letters; or ''
  lead: tuple[Part, ...]  # before the first section
  sections: tuple[Section, ...]


_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]*')


def parts(page: Page) -> tuple[Part, ...]:
  """Returns all parts of a page in their order."""
  return tuple(page.lead) + tuple(
      part for section in page.sections for part in section.parts)


def figures(page: Page) -> tuple[Figure, ...]:
  """Returns all figures of a page in their order."""
  return tuple(part for part in parts(page) if isinstance(part, Figure))


def validate(page: Page) -> None:
  """Checks what both formats need.

  Raises:
    TypeError: if a part is not a `Part`.
    ValueError: if a title, a caption, an alternative text or a header is empty,
      a row does not have one cell per column, `strong` has an index without a
      row, or the names of figures are not unique names of files.
  """
  for title in (page.title, *(section.title for section in page.sections)):
    if not title.strip():
      raise ValueError('titles of pages and sections must not be empty, got '
                       f'{title!r} in the page {page.title!r}')
  names = set()
  for part in parts(page):
    if isinstance(part, Table):
      _validate_table(part)
    elif isinstance(part, Figure):
      _validate_figure(part, names)
      names.add(part.name)
    elif not isinstance(part, Part):
      raise TypeError('parts of a page must be Text, Listing, Code, Table or '
                      f'Figure, got {type(part).__name__}: {part!r:.60}')


def _validate_table(table):
  if not table.caption.strip():
    raise ValueError('tables must have a caption, got none for the header '
                     f'{table.header}')
  if not table.header:
    raise ValueError(f'the table {table.caption!r} must have a header, got ()')
  for i, row in enumerate(table.rows):
    if len(row) != len(table.header):
      raise ValueError(
          f'rows of the table {table.caption!r} must have {len(table.header)} '
          f'cells, as many as its header, got {len(row)} in row {i}: {row}')
  outside = sorted(set(table.strong) - set(range(len(table.rows))))
  if outside:
    raise ValueError(
        f'strong rows of the table {table.caption!r} must be below '
        f'{len(table.rows)}, the number of rows, got {outside}')


def _validate_figure(figure, names):
  if not _NAME.fullmatch(figure.name):
    raise ValueError('names of figures must be names of files without spaces, '
                     f'got {figure.name!r}')
  if figure.name in names:
    raise ValueError('names of figures must be unique in a page, got '
                     f'{figure.name!r} twice')
  if not figure.alt.strip():
    raise ValueError(f'the figure {figure.name!r} must have an alternative '
                     'text that describes it, got an empty one')
