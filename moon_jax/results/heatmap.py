"""Draws a partition as a heat map: the examples per client and class."""

from collections.abc import Sequence
import pathlib
from typing import Any

import numpy as np

_MAX_LABELS = 30  # more tick labels would overlap
_MAX_NUMBERED = 20  # more rows or columns have no room for numbers
_MAX_NAMED = 100  # clients with names, of 7 points across the axis
MAX_NAME = 24  # characters of a client's name
_MAX_COLUMNS = 1500  # more would be narrower than a pixel
_MAX_SHAPES = 60  # rows or columns of shapes, which make SVG files large
_NUM_LEVELS = 12  # colours
# Texts remain texts in vector files; publishers refuse type 3 fonts.
VECTOR: Any = {'svg.fonttype': 'none', 'pdf.fonttype': 42}


def draw(counts_CK: np.ndarray, class_names: Sequence[str],
         path: pathlib.Path, client_names: Sequence[str] | None = None) -> None:
  """Draws clients on the x axis and classes on the y axis to a file.

  The ending of the path is its format: png, pdf or svg. If there are too many
  clients for a column each, a column is the mean of consecutive clients, and
  the axis says so. Vector files have at most 100 columns.

  `counts_CK` has the examples of each class at each client. Clients without
  names are numbered from 0.
  """
  from matplotlib import rc_context
  from matplotlib.figure import Figure

  num_clients, num_classes = counts_CK.shape
  figure = Figure((np.clip(2.5 + .55 * num_clients, 5, 16),
                   np.clip(1.5 + .4 * num_classes, 4, 12)),
                  layout='constrained')
  fill(figure, counts_CK, class_names,
       _MAX_COLUMNS if path.suffix == '.png' else _MAX_NAMED)
  axes = figure.axes[0]
  if client_names and num_clients <= _MAX_NAMED:
    is_wide = num_clients <= _MAX_NUMBERED
    axes.set_xticks(range(num_clients), [
        name[:MAX_NAME] for name in client_names], rotation=45 + 45 * (
            not is_wide), ha='right' if is_wide else 'center',
                    fontsize=None if is_wide else 7)
  if max(num_clients, num_classes) <= _MAX_NUMBERED:
    if not client_names:
      axes.set_xticks(range(num_clients))
    for (client, k), count in np.ndenumerate(counts_CK):
      axes.text(
          client, k, count, ha='center', va='center', fontsize=8,
          color='white' if count > counts_CK.max() / 2 else 'black')
  with rc_context(VECTOR):
    figure.savefig(path, dpi=120)


def fill(figure: Any, counts_CK: np.ndarray, class_names: Sequence[str],
         max_groups: int = _MAX_SHAPES) -> None:
  """Draws the heat map into an empty figure, as shapes and without numbers.

  SVG files of it have no embedded images. Cells without examples are white;
  the others have one of at most 12 colours, the darker the more examples. More
  than `max_groups` clients or classes are drawn as means of groups.
  """
  from matplotlib import cm, colors, ticker

  counts_CK, group = _grouped(counts_CK, max_groups)
  counts_KC, class_group = _grouped(counts_CK.T, max_groups)
  axes = figure.subplots()
  num_rows, num_columns = counts_KC.shape
  mesh = axes.pcolormesh(
      np.arange(num_columns + 1) - .5, np.arange(num_rows + 1) - .5,
      np.ma.masked_equal(counts_KC, 0), vmin=0, vmax=max(counts_KC.max(), 1),
      edgecolors='face', cmap=colors.ListedColormap(
          cm.Blues(np.linspace(.15, 1, _NUM_LEVELS))))
  axes.set(xlabel=_label('client', group), ylabel=_label('class', class_group))
  axes.invert_yaxis()
  axes.grid(visible=False)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  if num_rows <= _MAX_LABELS:
    axes.set_yticks(range(num_rows), class_names if (
        len(class_names) == num_rows) else ['all'])  # labels are no classes
  figure.colorbar(mesh, ax=axes, label='training examples')


def _label(name, group):
  return name if group == 1 else f'group of {group:,} ({name})'


def _grouped(counts_CK, max_groups):
  """Returns means over groups of consecutive rows, and the group's size."""
  num_clients = len(counts_CK)
  group = -(-num_clients // max_groups)
  starts = np.arange(0, num_clients, group)
  sizes = np.diff(starts, append=num_clients)
  return np.add.reduceat(counts_CK, starts) / sizes[:, None], group
