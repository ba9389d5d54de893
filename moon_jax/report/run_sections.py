"""The sections of a page about the runs themselves: curves, time, commands."""

from collections.abc import Sequence
import statistics

import numpy as np

from moon_jax.report import figures
from moon_jax.report import results
from moon_jax.report.arms import Arm
from moon_jax.report.document import Code
from moon_jax.report.document import Figure
from moon_jax.report.document import Section
from moon_jax.report.document import Table
from moon_jax.report.document import Text
from moon_jax.sweep import values

_MEASURES = {  # metrics that are drawn, and their axes
    'test_accuracy': 'test accuracy, %',
    'test_loss': 'test loss, nats per example',
    'train_loss': 'local loss, nats per example'}
_MAX_LINES = 12  # of a panel


def curves(arms: Sequence[Arm], panels: Sequence[str], loss_divisor: int,
           is_full: bool) -> Section | None:
  """Returns accuracy and losses by round, or None if no run has ended.

  Args:
    arms: the arms.
    panels: settings with one panel per value.
    loss_divisor: adds the test loss divided by it; 0 for none.
    is_full: whether to draw published accuracies as lines.
  """
  arms = [arm for arm in arms if arm.finished]
  if not arms:
    return None
  drawn = []
  for measure, ylabel in _MEASURES.items():
    drawn.append(_figure(arms, panels, measure, ylabel, 1, is_full))
    if measure == 'test_loss' and loss_divisor:
      drawn.append(_figure(arms, panels, measure, f'test loss / {loss_divisor}',
                           loss_divisor, is_full))
  return Section('Curves', tuple(drawn))


def _figure(arms, panels, measure, ylabel, divisor, is_full):
  """Returns the figure of one metric."""
  drawn: dict[str, list] = {}
  for arm in arms:
    drawn.setdefault(_panel(arm, panels), []).append(
        _line(arm, panels, measure, divisor, is_full))
  name = measure.replace('_', '-') + '-divided' * (divisor > 1)
  svg = figures.curves(tuple(
      figures.Panel(title, tuple(lines[:_MAX_LINES]))
      for title, lines in drawn.items()), ylabel, name)
  left_out = sum(max(0, len(lines) - _MAX_LINES) for lines in drawn.values())
  caption = (f'{ylabel[0].upper()}{ylabel[1:]}, by round. Line: mean over runs;'
             ' band: smallest to largest.')
  if is_full and measure == 'test_accuracy':
    caption += ' Dashed: published.'
  if left_out:
    caption += (f' {left_out} arm(s) beyond the first {_MAX_LINES} of a panel '
                'are left out.')
  last = '; '.join(f'{line.label}: {_last(line.curves_ST)}'
                   for lines in drawn.values() for line in lines)
  return Figure(name, svg, f'{ylabel} by round. After the last round, {last}.',
                caption)


def _last(curves_ST):
  """Returns the mean of the last values of curves, as text."""
  ends = [curve[~np.isnan(curve)][-1:] for curve in curves_ST]
  known = np.concatenate(ends) if ends else np.array([])
  return f'{known.mean():.3g}' if len(known) else 'not measured'


def _panel(arm, panels):
  """Returns the title of an arm's panel."""
  return ', '.join(
      f'{name} {values.show(getattr(arm.config, name))}' for name in panels)


def _line(arm, panels, measure, divisor, is_full):
  """Returns the line of an arm; its label leaves out what the panel names."""
  named = tuple(name for name in arm.named if name not in panels)
  published = [value.value for value in arm.published
               if value.measure == 'accuracy']
  return figures.Line(
      arm._replace(named=named).label, arm.config.algorithm,
      arm.curves(measure) / divisor,
      published[0] if is_full and measure == 'test_accuracy'
      and len(published) == 1 else None)


def time(arms: Sequence[Arm], has_prediction: bool) -> Section:
  """Returns the table of times, communication and hardware.

  Args:
    arms: the arms. With `has_prediction`, their runs trained alone.
    has_prediction: whether to add what the arithmetic of a local step predicts.
  """
  header = ['arm', 'seconds per round', 'examples/s', 'MB per round']
  published = any(value.measure == 'seconds' for arm in arms
                  for value in arm.published)
  rows = []
  for arm in arms:
    runs = arm.finished.values()
    sizes = [run.summary['bytes_per_round'] for run in runs
             if 'bytes_per_round' in run.summary]
    row = [arm.label, _median(runs, 'seconds_per_round', 2),
           _median(runs, 'examples_per_second', 0),
           f'{statistics.median(sizes) / 1e6:,.2f}' if sizes else '']
    if published:
      row.append('; '.join(f'{value.value:g} s' + (
          f' ({value.settings["dataset"]})' if 'dataset' in value.settings
          else '') for value in arm.published if value.measure == 'seconds'))
    if has_prediction:
      row += _predicted(arm, arms)
    rows.append(tuple(row))
  header += ['published'] * published
  header += ['predicted / FedAvg', 'measured / FedAvg'] * has_prediction
  shared = ('Each run trained alone.' if has_prediction else
            'The time of a run is its equal share of the program that trained '
            'it, alone or with others, so that times of different programs do '
            'not compare methods.')
  parts: list = [Table(
      f'Medians over rounds and runs. {shared} MB are 10^6 bytes sent and '
      'received by all clients of a round.', tuple(header), tuple(rows)),
                 Text(_hardware(arms))]
  if has_prediction:
    parts.append(Text(
        'Predicted: floating-point operations of a local step, as XLA counts '
        'them before it optimizes the program, divided by those of FedAvg with '
        'the same network. Measured: seconds per round divided by those of '
        'FedAvg.'))
  return Section('Time and communication', tuple(parts))


def _median(runs, name, digits):
  known = [run.summary[name] for run in runs if name in run.summary]
  return f'{statistics.median(known):,.{digits}f}' if known else ''


def _predicted(arm, arms):
  """Returns the cost of an arm relative to FedAvg, predicted and measured."""
  from moon_jax.report import arithmetic

  cost = f'{arithmetic.relative_cost(arm.config):.2f}'
  same = [other for other in arms if other.config.algorithm == 'fedavg'
          and all(getattr(other.config, name) == getattr(arm.config, name)
                  for name in ('dataset', 'model', 'num_clients',
                               'participation', 'local_epochs'))]
  ours, theirs = (_seconds(of) for of in (arm, same[0] if same else arm))
  return [cost, f'{ours / theirs:.2f}' if same and ours and theirs else '']


def _seconds(arm):
  known = [run.summary['seconds_per_round'] for run in arm.finished.values()
           if 'seconds_per_round' in run.summary]
  return statistics.median(known) if known else 0.


def _hardware(arms):
  """Returns the devices and versions of all runs."""
  found = {}
  for arm in arms:
    for run in arm.finished.values():
      versions = run.summary.get('versions', {})
      found[f'{run.summary.get("device", "unknown device")}, moon_jax '
            f'{versions.get("moon_jax", "?")}, JAX {versions.get("jax", "?")}, '
            f'{run.summary.get("arithmetic", "float32")}'] = None
  return f'Hardware and software: {"; ".join(found) or "no run has ended"}.'


def commands(arms: Sequence[Arm], command: str) -> Section:
  """Returns the commands that repeat the page and each run.

  Args:
    arms: the arms.
    command: the command of the page.
  """
  rows = []
  for arm in arms:
    command_of_run = results.normalized(arm.config).command()
    rows.append((arm.label, _seeds(arm), f'`{command_of_run}`'))
  parts = [Text('This page; runs that are missing are trained:'),
           Code(command), Table(
      'The command of one run of each arm; the others differ in --seed. A '
      'DATA_DIR is the directory of the data set.',
      ('arm', 'finished seeds', 'command'), tuple(rows))]
  diverged = [(arm.label, str(seed[0]), ' '.join(run.diverged.split()))
              for arm in arms for seed, run in arm.runs.items() if run.diverged]
  if diverged:
    parts.append(Table('Runs that diverged. They are left out of all means and '
                       'comparisons.', ('arm', 'seed', 'reason'),
                       tuple(diverged)))
  return Section('Commands', tuple(parts))


def _seeds(arm):
  seeds = dict.fromkeys(str(seed) for seed, _ in sorted(arm.finished))
  return ', '.join(seeds) or 'none'
