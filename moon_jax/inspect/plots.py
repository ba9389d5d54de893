"""Draws a run to a PNG file: accuracy, losses, drift and clients."""

from collections.abc import Sequence
import pathlib
import textwrap
from typing import Any

import numpy as np

from moon_jax.errors import UserError
from moon_jax.inspect import read
from moon_jax.inspect.groups import Group
from moon_jax.inspect.read import Run
from moon_jax.view import curves

# Metric -> its label. A metric with a "_std" has a band of that width.
_ACCURACIES = {
    'test_accuracy': 'test', 'validation_accuracy': 'validation',
    'global_train_accuracy': 'training',
    'global_heldout_accuracy': 'held-out, of clients',
    'local_own_accuracy': 'local models, own examples',
    'local_test_accuracy': 'local models, test'}
_LOSSES = {'train_loss': 'local objective', 'cross_entropy': 'cross-entropy',
           'contrastive_loss': 'contrastive', 'proximal_term': 'proximal term',
           'test_loss': 'test', 'validation_loss': 'validation'}
_OF_CLIENTS = {'local_own_accuracy': 'local,\nown', 'local_test_accuracy':
               'local,\ntest', 'global_own_accuracy': 'global,\nown',
               'local_heldout_accuracy': 'local,\nheld-out',
               'global_heldout_accuracy': 'global,\nheld-out'}


def figure(width: float = 10, height: float = 7) -> Any:
  """Returns an empty figure that needs no display."""
  # pyplot would look for a display and keep each figure in memory.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  made = Figure(figsize=(width, height), layout='constrained')
  FigureCanvasAgg(made)
  return made


def save(made: Any, path: pathlib.Path) -> None:
  """Writes a figure.

  Raises:
    UserError: if the file name has no known ending, or cannot be written.
  """
  try:
    made.savefig(path, dpi=120)
  except (OSError, ValueError) as error:
    raise UserError(f'--plot={path} must be a file that can be written, such '
                    f'as run.png; got {error}') from error


def draw(run: Run, path: pathlib.Path) -> None:
  """Draws a run to a file.

  Raises:
    UserError: if the run has no metrics yet, or the file cannot be written.
  """
  if not run.lines:
    raise UserError(f'{run.path} must have metrics to plot, got none yet; wait '
                    'for its first round')
  made = figure()
  config = run.config
  made.suptitle(f'{config["algorithm"]}, {config["dataset"]}, seed '
                f'{config["seed"]}: {run.path.name} ({run.state.kind})')
  (accuracy, loss), (drift, clients) = made.subplots(2, 2)
  _curves(accuracy, run, _ACCURACIES, 'accuracy')
  _curves(loss, run, _LOSSES, 'loss')
  _drift(drift, run)
  _clients(clients, run)
  save(made, path)


def draw_groups(groups: Sequence[Group], path: pathlib.Path) -> None:
  """Draws the mean test accuracy of each group, with its deviation.

  Raises:
    UserError: if the file cannot be written.
  """
  made = figure(9, 5)
  axes = made.subplots()
  for mark, found in zip(curves.MARKS, groups):
    curve = found.curve()
    if curve:
      x, y, std = np.array(curve).T
      count = len(found.counted)
      line, = axes.plot(
          x, y, marker='.' if len(x) < 30 else '', label=f'{mark}  '
          + '\n'.join(textwrap.wrap(found.label, 60)) + f' (n={count})')
      if count > 1:
        axes.fill_between(x, y - std, y + std, color=line.get_color(),
                          alpha=.15, linewidth=0)
  _finish(axes, 'test accuracy: mean ± standard deviation over seeds')
  save(made, path)


def _curves(axes, run, names, title):
  for name, label in names.items():
    series = run.series(name)
    if not series:
      continue
    x, y = np.array(series).T
    line, = axes.plot(x, y, label=label, marker='.' if len(x) < 30 else '')
    spread = dict(run.series(f'{name}_std'))
    if spread.keys() >= set(x):
      std = np.array([spread[round_] for round_ in x])
      axes.fill_between(
          x, np.maximum(y - std, 0), np.minimum(y + std, 1), alpha=.15,
          color=line.get_color(), linewidth=0)  # accuracies
  _finish(axes, title)


def _finish(axes, title):
  from matplotlib.ticker import MaxNLocator

  axes.set(title=title, xlabel='round')
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  axes.grid(alpha=.3)
  if axes.get_legend_handles_labels()[0]:
    axes.legend(fontsize=8)
  else:
    _note(axes, 'not recorded')


def _note(axes, text):
  axes.text(.5, .5, text, ha='center', va='center', transform=axes.transAxes,
            color='gray')


def _drift(axes, run):
  """The mean drift, and that of each client where it is recorded."""
  dots = [(line['round'], value) for line in run.lines
          if isinstance(line.get('clients'), dict)
          for value in line['clients'].get('drift', ())
          if read.is_number(value)]
  if dots:
    axes.plot(*np.array(dots).T, '.', color='gray', alpha=.4, markersize=4,
              label='drift of a client')
  if series := run.series('drift'):
    axes.plot(*np.array(series).T, label='mean drift')
  if series := run.series('update_cosine'):
    other = axes.twinx()
    color = 'tab:orange'
    other.plot(*np.array(series).T, color=color, alpha=.8)
    axes.plot([], [], color=color, label='cosine of updates (right)')
    other.tick_params(axis='y', colors=color)
  _finish(axes, 'client drift')


def _clients(axes, run):
  """Accuracies over clients, or else the numbers of their examples."""
  line = next((line for line in reversed(run.lines)
               if isinstance(line.get('clients'), dict)), None)
  table = line['clients'] if line else {}
  shown = {label: [value for value in table.get(name, ())
                   if read.is_number(value)]
           for name, label in _OF_CLIENTS.items()}
  shown = {label: values for label, values in shown.items() if values}
  if shown:
    axes.boxplot(list(shown.values()), tick_labels=list(shown), widths=.5,
                 showfliers=False)
    random = np.random.default_rng(0)
    for index, values in enumerate(shown.values(), 1):
      axes.plot(index + random.uniform(-.12, .12, len(values)), values, '.',
                color='tab:blue', alpha=.5)
    axes.set(title=f'accuracy of each client, round {line["round"]}')
    axes.grid(axis='y', alpha=.3)
  elif run.client_sizes is not None and len(run.client_sizes):
    axes.hist(run.client_sizes, bins=min(20, len(run.client_sizes)))
    axes.set(title='training examples of clients', xlabel='examples',
             ylabel='clients')
  else:
    axes.set(title='clients')
    _note(axes, 'not recorded')
