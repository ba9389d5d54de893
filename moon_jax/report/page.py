"""Makes the page of a table from its runs."""

from collections.abc import Mapping
from collections.abc import Sequence

from moon_jax.report import arms as arms_lib
from moon_jax.report import comparison_sections
from moon_jax.report import run_sections
from moon_jax.report import sections
from moon_jax.report.arms import Arm
from moon_jax.report.document import Code
from moon_jax.report.document import Page
from moon_jax.report.document import Section
from moon_jax.report.document import Text
from moon_jax.report.results import Key
from moon_jax.report.results import Result
from moon_jax.report.table_file import Table
from moon_jax.sweep import values

_WARNINGS = {
    'smoke': 'It shows that the table can be made, and nothing about the '
             'methods.',
    'small': 'Accuracies cannot be compared with published ones, and '
             'differences between methods may change with more rounds.',
    'full': ''}


def make(table: Table, found: Mapping[Key, Result], command: str,
         extra: Sequence[Section] = ()) -> Page:
  """Returns the page of a table.

  Args:
    table: the table.
    found: the runs that have ended; see `results.find`.
    command: the command of the page.
    extra: sections of `Table.pages`, which come after those of accuracies.
  """
  is_full = table.budget == 'full' and not table.changed
  arms = arms_lib.make(table, found)
  arms, best = arms_lib.chosen(arms, table.best_of)
  accuracy = sections.accuracy(arms, best, is_full)
  differences = comparison_sections.differences(arms)
  rounds = comparison_sections.rounds(arms)
  first = {'accuracy': [accuracy, differences, rounds],
           'rounds': [rounds, accuracy, differences],
           'time': [accuracy, differences]}[table.headline]
  time = run_sections.time(arms, has_prediction=table.headline == 'time')
  order = [*first, *extra,
           run_sections.curves(arms, table.panels, table.loss_divisor, is_full),
           time, sections.facts(
               table.notes, table.source, table.budget in ('full', '')),
           run_sections.commands(arms, command)]
  if table.headline == 'time':
    order.remove(time)
    order.insert(0, time)
  return Page(table.title, banner(table, arms), lead(table, arms),
              tuple(section for section in order if section))


def banner(table: Table, arms: Sequence[Arm]) -> str:
  """Returns the budget in one line."""
  runs = sum(len(arm.seeds) for arm in arms)
  text = f'{_budget(arms)}, {runs} run{"s" * (runs != 1)}'
  if not table.budget:
    return f'{text}.'
  name = table.budget.upper() + ' BUDGET' + ', CHANGED' * bool(table.changed)
  return f'{name}: {text}. {_WARNINGS[table.budget]}'.strip()


def _budget(arms):
  """Returns data sets, rounds and epochs of the arms, in words."""
  words = []
  for name, unit in (('dataset', ''), ('num_rounds', ' rounds'),
                     ('local_epochs', ' local epochs')):
    shown = list(dict.fromkeys(
        values.show(getattr(arm.config, name)) for arm in arms))
    words.append(', '.join(shown[:-1]) + ' and ' * (len(shown) > 1) + shown[-1]
                 + (unit.removesuffix('s') if shown == ['1'] else unit))
  parts = dict.fromkeys(arm.config.train_examples for arm in arms)
  if any(parts):
    words[0] += f', {" or ".join(f"{n:,}" for n in parts)} training examples'
  return f'{words[0]}, {words[1]} of {words[2]}'


def lead(table: Table, arms: Sequence[Arm]) -> tuple[Text, ...]:
  """Returns the first paragraphs: what the table is, and what is missing."""
  planned = sum(len(arm.seeds) for arm in arms)
  ended = sum(len(arm.runs) for arm in arms)
  texts = [table.description] if table.description else []
  if table.budget not in ('full', ''):
    texts.append(_replaced(table))
  if ended < planned:
    texts.append(f'**{ended} of {planned} runs have ended.** Rows of '
                 'unfinished runs are empty or incomplete.')
  return tuple(map(Text, texts))


def _replaced(table):
  """Returns a sentence about the settings that the budget replaces."""
  found: dict[str, dict[str, None]] = {}
  for block in table.blocks:
    for name in block.replaced.keys() - {'data_dir'}:
      found.setdefault(name, {}).update(dict.fromkeys(
          values.show(getattr(config, name)) for config in block.sweep.configs))
  return ('This describes the full budget. Settings of this one: ' + '; '.join(
      f'{name} {", ".join(found[name])}' for name in sorted(found)) + '.')


def without_runs(table: Table, extra: Sequence[Section], command: str) -> Page:
  """Returns the page of a table that needs no runs.

  Args:
    table: the table.
    extra: its sections.
    command: the command of the page.
  """
  order = [*extra, sections.facts(
               table.notes, table.source, table.budget in ('full', '')),
           Section('Command', (Code(command),))]
  description = (Text(table.description),) if table.description else ()
  names = dict.fromkeys(config.dataset for config in table.sweep.configs)
  banner_text = f'{table.budget.upper()} BUDGET: {", ".join(names)}.'
  return Page(table.title, banner_text, description,
              tuple(section for section in order if section))
