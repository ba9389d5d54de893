"""Draws a partition as a heat map: the examples per client and class."""

from collections.abc import Sequence
import pathlib

import numpy as np

_MAX_LABELS = 30  # more tick labels would overlap
_MAX_NUMBERED = 20  # more rows or columns have no room for numbers
_MAX_COLUMNS = 1500  # more would be narrower than a pixel


def draw(counts_CK: np.ndarray, class_names: Sequence[str],
         path: pathlib.Path) -> None:
  """Draws clients on the x axis and classes on the y axis to a PNG file.

  Darker cells have more examples. If there are too many clients for a column
  each, a column is the mean of consecutive clients, and the axis says so.

  Args:
    counts_CK: int [C, K], number of examples of each class at each client.
    class_names: [K].
    path: the file to write.
  """
  # pyplot would look for a display and keep each figure in memory.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  counts_CK, group = _grouped(counts_CK)
  num_clients, num_classes = counts_CK.shape
  figure = Figure(
      figsize=(np.clip(2.5 + .55 * num_clients, 5, 16),
               np.clip(1.5 + .4 * num_classes, 4, 12)), layout='constrained')
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  image = axes.imshow(counts_CK.T, cmap='Blues', aspect='auto', vmin=0,
                      interpolation='nearest')
  axes.set_xlabel('client' if group == 1 else
                  f'groups of {group:,} clients; each column is their mean')
  axes.set_ylabel('class')
  if num_clients <= _MAX_LABELS:
    axes.set_xticks(range(num_clients))
  if num_classes <= _MAX_LABELS:
    axes.set_yticks(range(num_classes), class_names)
  if max(num_clients, num_classes) <= _MAX_NUMBERED:
    for (client, k), count in np.ndenumerate(counts_CK):
      is_dark = count > counts_CK.max() / 2
      axes.text(client, k, count, ha='center', va='center', fontsize=8,
                color='white' if is_dark else 'black')
  figure.colorbar(image, label='training examples')
  figure.savefig(path, dpi=120)


def _grouped(counts_CK):
  """Returns means over groups of consecutive clients, and the group's size."""
  num_clients = len(counts_CK)
  group = -(-num_clients // _MAX_COLUMNS)
  if group == 1:
    return counts_CK, 1
  starts = np.arange(0, num_clients, group)
  sizes = np.diff(starts, append=num_clients)
  return np.add.reduceat(counts_CK, starts) / sizes[:, None], group
