"""Makes the page of a table from its runs."""

from collections.abc import Mapping
from collections.abc import Sequence

from moon_jax.report import arms as arms_lib
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
  best = arms_lib.chosen(arms, table.best_of) if table.best_of else []
  first = {
      'accuracy': [sections.accuracy(arms, best, is_full),
                   sections.compared(arms), sections.rounds(arms)],
      'rounds': [sections.rounds(arms), sections.accuracy(arms, best, is_full),
                 sections.compared(arms)],
      'time': [sections.accuracy(arms, best, is_full),
               sections.compared(arms)]}[table.headline]
  time = run_sections.time(arms, has_prediction=table.headline == 'time')
  order = [*first, *extra,
           run_sections.curves(arms, table.panels, table.loss_divisor, is_full),
           time, sections.facts(table.notes, table.source),
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
  name = table.budget.upper() + ' BUDGET' + ', CHANGED' * table.changed
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
  return f'{words[0]}, {words[1]} of {words[2]}'


def lead(table: Table, arms: Sequence[Arm]) -> tuple[Text, ...]:
  """Returns the first paragraphs: what the table is, and what is missing."""
  planned = sum(len(arm.seeds) for arm in arms)
  ended = sum(len(arm.runs) for arm in arms)
  texts = [table.description] if table.description else []
  if ended < planned:
    texts.append(f'**{ended} of {planned} runs have ended.** The other rows '
                 'are empty or incomplete.')
  return tuple(map(Text, texts))


def without_runs(table: Table, extra: Sequence[Section], command: str) -> Page:
  """Returns the page of a table that needs no runs.

  Args:
    table: the table.
    extra: its sections.
    command: the command of the page.
  """
  order = [*extra, sections.facts(table.notes, table.source),
           Section('Command', (Code(command),))]
  description = (Text(table.description),) if table.description else ()
  return Page(table.title, '', description,
              tuple(section for section in order if section))
