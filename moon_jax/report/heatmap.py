"""Draws a partition as the papers do: how much of each class a client has."""

from collections.abc import Sequence
import pathlib

import numpy as np

_MAX_NAMED = 30  # rows or columns that still can be labelled
_MAX_NUMBERED = 20


def draw(counts_CK: np.ndarray, class_names: Sequence[str],
         path: pathlib.Path) -> None:
  """Writes a PNG, clients across and classes down, darker for more examples.

  Args:
    counts_CK: int [C, K], examples of each class that each client has.
    class_names: [K].
    path: the file to write.
  """
  # Not pyplot: it looks for a display and keeps what it drew.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  num_clients, num_classes = counts_CK.shape
  figure = Figure(
      figsize=(np.clip(2.5 + .55 * num_clients, 5, 16),
               np.clip(1.5 + .4 * num_classes, 4, 12)), layout='constrained')
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  image = axes.imshow(counts_CK.T, cmap='Blues', aspect='auto', vmin=0,
                      interpolation='nearest')
  axes.set_xlabel('client')
  axes.set_ylabel('class')
  if num_clients <= _MAX_NAMED:
    axes.set_xticks(range(num_clients))
  if num_classes <= _MAX_NAMED:
    axes.set_yticks(range(num_classes), class_names)
  if max(num_clients, num_classes) <= _MAX_NUMBERED:
    for (client, k), count in np.ndenumerate(counts_CK):
      dark = count > counts_CK.max() / 2
      axes.text(client, k, count, ha='center', va='center', fontsize=8,
                color='white' if dark else 'black')
  figure.colorbar(image, label='training examples')
  figure.savefig(path, dpi=120)
