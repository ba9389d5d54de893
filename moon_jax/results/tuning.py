"""The reports and figures of tunings (docs/sweeps.md)."""

from collections.abc import Sequence
import functools

from moon_jax.results import stats
from moon_jax.results.page import Figure
from moon_jax.results.trials import Tuning

_LOG = 20  # a range with this ratio of its ends is drawn on a logarithmic axis


def sections(tunings: Sequence[Tuning]) -> list[str | Figure]:
  """Returns the report and the figure of each tuning."""
  made: list[str | Figure] = []
  for tuning in tunings:
    made += [f'## Tuning {tuning.path.parent.name}',
             '\n'.join(['```text', *tuning.report, '```'])]
    if tuning.rows:
      made.append(_figure(tuning.rows, f'tuning-{len(made) - 2}'))
  return made


def _figure(rows, name):
  from moon_jax.results import figures

  columns, known = [*rows[0]], [
      row for row in rows if row['value'] and row['is_trial'] == 'True']
  searched = columns[1:columns.index('seed')]  # after the method
  metrics = dict.fromkeys(row['metric'] for row in known)
  label = ' or '.join(map(stats.words, metrics))
  return Figure(
      name, figures.svg(functools.partial(
          _draw, rows=known, searched=searched, metrics=[*metrics]),
                        2.4 * (1 + len(searched)), name),
      f'Points: the {label} of {len(known)} trials over their number and over '
      f'{", ".join(searched)}.',
      f'The last {label} of each trial. The larger a point, the more rounds '
      'has the trial; the chosen one has a ring.')


def _draw(figure, rows, searched, metrics):
  from moon_jax.results import figures

  axes = figure.subplots(1 + len(searched), squeeze=False)[:, 0]
  most = max((int(row['rounds_done']) for row in rows), default=1)
  methods = list(dict.fromkeys(row['method'] for row in rows))
  for ax, name in zip(axes, ['', *searched]):
    texts = [row[name] for row in rows] if name else []
    for color, method in zip(figures.shades(methods), methods):
      points = [(_place(row, i, name, texts),
                 stats.scale(row['metric']) * float(row['value']),
                 12 + 48 * int(row['rounds_done']) / most,
                 row['chosen'] == 'True')
                for i, row in enumerate(rows) if row['method'] == method
                and (row[name] if name else True)]
      if points:
        xs, ys, sizes, rings = zip(*points)
        ax.scatter(xs, ys, sizes, color, label=method, linewidths=[
            2 * ring for ring in rings], edgecolors='#333333')
    ax.set(xlabel=name or 'trial, the best of most rounds first',
           ylabel=' or '.join(map(stats.label, metrics)))
    _set_scale(ax, texts)
  if len(methods) > 1:
    figure.legend(handles=axes[0].collections, loc='outside lower center')


def _place(row, index, name, texts):
  """Returns where a trial is on an axis: a number, or the index of a word."""
  if not name:
    return index + 1
  words = _words(texts)
  return words.index(row[name]) if words else float(row[name])


def _words(texts):
  """Returns the distinct values of a setting that is no number, else []."""
  try:
    for text in filter(None, texts):
      float(text)
    return []
  except ValueError:
    return sorted({*filter(None, texts)})


def _set_scale(ax, texts):
  if words := _words(texts):
    ax.set_xticks(range(len(words)), words)
  elif numbers := [float(text) for text in texts if text]:
    if min(numbers) > 0 and max(numbers) > _LOG * min(numbers):
      ax.set_xscale('log')
