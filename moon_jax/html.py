"""HTML of values, which notebooks show: the results of `_repr_html_`."""

from collections.abc import Mapping
import html
import numbers


def table(title: str, rows: Mapping[str, object]) -> str:
  """Returns a table with a row per name; numbers have five digits."""
  left = 'style="text-align:left"'
  cells = [f'<tr><th scope="row" {left}>{html.escape(name)}</th>'
           f'<td {left}>{html.escape(_text(value))}</td></tr>'
           for name, value in rows.items()]
  return (f'<table><caption>{html.escape(title)}</caption>'
          f'{"".join(cells)}</table>')


def _text(value):
  if isinstance(value, numbers.Integral):
    return f'{value:,}' if not isinstance(value, bool) else str(value)
  return f'{value:.5g}' if isinstance(value, numbers.Real) else str(value)
