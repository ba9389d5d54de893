"""Tables of results: values that terminals, pages and CSV files show."""

from collections.abc import Iterable, Mapping, Sequence
import re
import textwrap
from typing import NamedTuple

from moon_jax.results import page
from moon_jax.view.text import label_lines

_GAP = 2  # columns of a terminal between two of a table
_LEAST_HEADER = 8  # columns of a header that is broken, if it is longer
_LEAST_LABEL = 16  # columns of the first cell of a row, which is broken


class Table(NamedTuple):
  """Cells of text with a title. The first columns name the rows."""

  title: str
  columns: Mapping[str, Sequence[str]]  # cells by header
  notes: tuple[str, ...] = ()  # below it
  is_cut: bool = False  # whether columns without room are only named
  num_names: int = 1  # columns that name a row

  @property
  def shown(self) -> dict[str, Sequence[str]]:
    """The columns that are not empty in all rows, and the first one."""
    names = [*self.columns]
    return {name: self.columns[name] for name in names if name in names[:1]
            or any(cell.strip('-–') for cell in self.columns[name])}

  def text(self, width: int) -> list[str]:
    """Returns the lines of the table for a terminal of `width` columns.

    Headers, and then the first cells, are broken if the table is too wide.
    Columns for which there is no room follow below in a second block, beside
    the names of the rows, or are only named.
    """
    names = [*self.columns][:self.num_names]
    blocks, missing = _blocks(self.shown, [
        name for name in names if name in self.shown], width, self.is_cut)
    lines = [*wrapped(self.title, width)] if self.title else []
    for i, block in enumerate(blocks):
      lines += [''] * bool(i) + _aligned(block, width, names)
    notes = [*self.notes, *(
        ['columns that do not fit, but in a wider terminal: '
         f'{", ".join(missing)}'] if missing else [])]
    return lines + [row for note in notes for row in wrapped(note, width)]

  def markdown(self) -> str:
    """Returns the table, its title as the caption, and its notes."""
    rows = [dict(zip(self.shown, cells))
            for cells in zip(*self.shown.values())]
    return '\n\n'.join([page.table(self.title, rows), *(
        re.sub(r'^\*', r'\\*', note) for note in self.notes)])  # no list


def terminal(parts: Iterable[Table | Sequence[str] | None], width: int) -> str:
  """Returns tables, and paragraphs of lines, for a terminal."""
  return '\n\n'.join('\n'.join(
      part.text(width) if isinstance(part, Table) else
      [row for line in part for row in wrapped(line, width)])
                     for part in parts if part)


def sections(tables: Mapping[str, Table | None]) -> list[str]:
  """Returns the sections of a page that have a table, by title."""
  return [part for title, table in tables.items() if table
          for part in (f'## {title}', table._replace(
              title=table.title or f'{title} of the run').markdown())]


def wrapped(line: str, width: int) -> list[str]:
  """Returns a line in lines that fit on a terminal, with whole paths."""
  return (textwrap.wrap(line, width, subsequent_indent='  ',
                        break_on_hyphens=False, break_long_words=False)
          if len(line) > width else [line])


def _blocks(columns, row_names, width, is_cut):
  """Returns columns in blocks that fit, and the names of what is left out."""
  labels = {name: columns[name] for name in row_names}
  blocks, missing = [labels], []
  for name in [name for name in columns if name not in labels]:
    block = blocks[-1] | {name: columns[name]}
    if len(blocks[-1]) == len(labels) or sum(_widths(block, width)) + _GAP * (
        len(block) - 1) <= width:
      blocks[-1] = block
    elif is_cut:
      missing.append(name)
    else:
      blocks.append(labels | {name: columns[name]})
  return blocks, missing


def _widths(columns, width):
  """Returns the least width of each column, its header being broken."""
  first, *others = [max(map(len, [
      *cells, name[:_LEAST_HEADER], *name.split()]))
                   for name, cells in columns.items()]
  room = width - sum(others) - _GAP * len(others)
  return [min(first, max(room, _LEAST_LABEL)), *others]


def _label(text, width):
  """Returns lines that are not longer, whatever the label is."""
  return [part for line in label_lines(text, width)
          for part in textwrap.wrap(line, width)] or ['']


def _aligned(columns, width, row_names):
  """Returns the lines of columns; numbers are aligned to the right."""
  names = [*columns]
  is_left = [not i or name in row_names and any(
      cell[:1].isalpha() for cell in columns[name])
             for i, name in enumerate(names)]
  plain = [max(map(len, [name, *cells])) for name, cells in columns.items()]
  widths = plain if sum(plain) + _GAP * (
      len(names) - 1) <= width else _widths(columns, width)
  rows = [[textwrap.wrap(name, size) for name, size in zip(names, widths)]]
  rows = [[[''] * (max(map(len, rows[0])) - len(cell)) + cell
           for cell in rows[0]]]  # headers end at the same line
  rows += [[_label(first, widths[0]), *([cell] for cell in cells)]
           for first, *cells in zip(*columns.values())]
  lines = []
  for row in rows:
    height = max(map(len, row))
    for i in range(height):
      # Cells beside a broken label stand at its last line.
      parts = [cell[i - height + len(cell)] if i >= height - len(cell) else ''
               for cell in row]
      lines.append('  '.join(
          part.ljust(size) if left else part.rjust(size)
          for left, part, size in zip(is_left, parts, widths)).rstrip())
  return [line for line in lines if line]
