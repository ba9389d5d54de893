"""Files of published tables: their runs, budgets and published values.

docs/looking_at_runs.md describes the format, which extends the files of sweeps
(`moon_jax.cli.toml_file`).
"""

from collections.abc import Mapping
import functools
import hashlib
import numbers
import operator
from typing import Any, NamedTuple

from moon_jax.cli import toml_file
from moon_jax.config import Config, PARTS
from moon_jax.data.io import files
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.errors import UserError
from moon_jax.results.read import BUDGETS
from moon_jax.runs import grid, identity, values
from moon_jax.runs.grid import Sweep

HEADLINES = ('accuracy', 'rounds', 'time')
PAGES = ('data', 'projections')  # sections that a table may add
# Keys that are lists of strings, and the names that these may be.
_LISTS = {'pages': PAGES, 'panels': values.TYPES, 'best_of': values.TYPES,
          'notes': ()}
_MEASURES = ('accuracy', 'global', 'personal', 'rounds', 'seconds')
# Keys of [[published]] that are not settings, and their types.
_PUBLISHED_KEYS = dict.fromkeys((*_MEASURES, 'std'), numbers.Real) | {
    'n': int, 'source': str, 'note': str}


class Published(NamedTuple):
  """A published value and the settings of its runs."""

  settings: dict[str, Any]  # that select its runs, by name
  measure: str  # "accuracy" in percent; on held-out examples of clients that
  # of the "global" or the "personal" model; "rounds" to the baseline's
  # accuracy; "seconds" per round
  value: float  # a mean if there were several runs
  std: float | None  # standard deviation over the runs
  n: int | None  # number of runs
  note: str  # a sentence, or ''


class Block(NamedTuple):
  """The runs of one block at the budget of the table."""

  sweep: Sweep
  baseline: dict[str, Any]  # settings of the baseline of these runs
  # Settings that the budget replaces, with their value at the full budget; a
  # tuple for several.
  replaced: dict[str, Any]


class Table(NamedTuple):
  """A published table at one budget."""

  name: str  # of the file, without its ending
  budget: str  # one of `BUDGETS`
  changed: str  # hash of the settings that the command line replaces, or ''
  blocks: tuple[Block, ...]
  published: tuple[Published, ...]
  title: str = ''
  description: str = ''
  source: str = ''
  headline: str = 'accuracy'  # one of `HEADLINES`, decides the first section
  pages: tuple[str, ...] = ()  # further sections, of `PAGES`
  panels: tuple[str, ...] = ()  # settings with one panel per value in figures
  best_of: tuple[str, ...] = ()  # settings whose best value each row has
  notes: tuple[str, ...] = ()  # facts

  @property
  def sweep(self) -> Sweep:
    """The runs of all blocks."""
    return functools.reduce(
        operator.or_, (block.sweep for block in self.blocks))


def read(path: str, budget: str = 'full',
         replacing: Mapping[str, Any] | None = None) -> Table:
  """Reads the file of a table at a budget, one of `BUDGETS`.

  Settings of `replacing` replace those of the file; tuples are axes.

  Raises:
    UserError: if the file is missing or invalid, or a run is impossible.
  """
  file, replacing = toml_file.read(path), dict(replacing or {})
  report = file.keys
  common: dict[str, Any] = {}
  if budgets := report.get('budgets'):
    place = files.user_path(path).parent / budgets
    common = _budget(toml_file.content(place), budget, str(place))
  common |= _budget(report.get('budget', {}), budget, path)
  baseline = toml_file.settings(report.get('baseline', {}), f'{path}, baseline')
  smaller, baselines = [], []
  for i, own in enumerate(file.block_keys, 1):
    where = f'{path}, block {i} of [[runs]]'
    smaller.append(common | _budget(own.get('budget', {}), budget, where))
    baselines.append(toml_file.settings(
        own['baseline'], f'{where}, baseline') if 'baseline' in own
                     else baseline)
  if budget != 'full' and not any(smaller):
    raise UserError('budget', f'must be one that {path} has', budget,
                    'Give --budget=full, or add a table '
                    f'[budget.{budget}]')
  sweeps = grid.each(Config(**file.base), [
      block | changes | replacing
      for block, changes in zip(file.blocks, smaller)], f'{path}, run')
  changed = {name: value for name, value in sorted(replacing.items())
             if name.partition('.')[0] in identity.IDENTITY}
  headline = report.get('headline', HEADLINES[0])
  if headline not in HEADLINES:
    raise UserError('', f'{path}: headline must be {" or ".join(HEADLINES)}',
                    repr(headline))
  lists = {name: _words(report.get(name, []), f'{path}: {name}', known)
           for name, known in _LISTS.items()}
  table = Table(
      file.name, budget,
      hashlib.sha256(repr(changed).encode()).hexdigest()[:HASH_DIGITS]
      * bool(changed),
      tuple(Block(sweep, baseline, {
          name: block.get(name, file.base.get(
              name, values.get(Config(), name)))
          for name in changes | replacing}) for sweep, baseline, block, changes
            in zip(sweeps, baselines, file.blocks, smaller)), tuple(
          _published(entry, f'{path}, block {i} of [[published]]')
          for i, entry in enumerate(report.get('published', []), 1)),
      report.get('title') or file.name,
      report.get('description', '').strip(),
      report.get('source', ''), headline, **lists)
  if budget == 'full' and not changed:
    _check_published(table, path)
  return table


def _check_published(table, path):
  for i, value in enumerate(table.published, 1):
    if not any(is_for(value, config, block) for block in table.blocks
               for config in block.sweep.configs):
      shown = ', '.join(f'{name}={values.show(x)}'
                        for name, x in value.settings.items())
      raise UserError(
          '', f'{path}: block {i} of [[published]] must have settings of a run',
          shown, 'Correct them or add the run')


def is_for(published: Published, config: Config, block: Block) -> bool:
  """Returns whether a published value is for a run of a block.

  A setting that the budget replaces is compared in the full budget, unless runs
  differ in it at this budget too. A value of another data set is for no run.
  """
  if block.replaced.get('dataset', config.dataset) != config.dataset:
    return False
  for name, value in published.settings.items():
    if name in block.replaced and name not in block.sweep.axes:
      ours = block.replaced[name]
      ours = ours if isinstance(ours, tuple) else (ours,)
      if not any(_is_value(config, name, x, value) for x in ours):
        return False
    elif not values.is_value(config, name, value):
      return False
  return True


def _is_value(config, name, ours, value):
  """Returns whether a setting that a budget replaces has a value."""
  if name not in PARTS:
    return ours == value
  return values.is_value(values.replace(config, {name: ours}), name, value)


def _budget(budgets, budget, where):
  """Returns the settings of a budget, {} if there are none."""
  for name, settings in budgets.items():
    if name not in BUDGETS[:-1] or not isinstance(settings, dict):
      raise UserError(
          '', f'{where}: budgets must be tables {" or ".join(BUDGETS[:-1])}',
          f'{name} = {settings!r}', 'The full budget is the file without them')
  return toml_file.settings(
      budgets.get(budget, {}), f'{where}, budget {budget}')


def _words(words, where, known) -> tuple[str, ...]:
  """Returns a list of strings, which must be known names if there are any."""
  for value in words:
    if not isinstance(value, str) or (known and value not in known and not (
        known is values.TYPES and values.is_argument(value))):
      raise UserError('', f'{where} must be a list of '
                      f'{"names" if known else "sentences"}', repr(value))
  return tuple(words)


def _published(entry: Any, where: str) -> Published:
  if not isinstance(entry, dict):
    raise UserError('', f'{where} must be a table', repr(entry))
  toml_file.check_types(entry, _PUBLISHED_KEYS, where)
  measures = [name for name in _MEASURES if name in entry]
  if len(measures) != 1:
    raise UserError('', f'{where} must have one of {", ".join(_MEASURES)}',
                    measures or 'none')
  settings = toml_file.settings(
      {name: value for name, value in entry.items()
       if name not in _PUBLISHED_KEYS}, where)
  return Published(settings, measures[0], float(entry[measures[0]]),
                   entry.get('std'), entry.get('n'), entry.get('note', ''))
