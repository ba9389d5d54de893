"""Files of tables; tests/experiments/tables_test.py has the published ones."""

import pytest

from moon_jax.config import Part
from moon_jax.errors import UserError
from moon_jax.results import table_file
from moon_jax.results.table_file import Published
from moon_jax.runs import values


def settings(table, *names):
  return [{tuple(values.get(config, name) for name in names)
           for config in block.sweep.configs} for block in table.blocks]


def test_the_full_budget_is_the_file(table):
  assert settings(table, 'num_rounds', 'local_epochs') == [{(8, 10)}] * 3
  assert [len(block.sweep.configs) for block in table.blocks] == [6, 12, 3]
  assert len(table.sweep.configs) == 21 and not table.changed
  assert table.blocks[1].baseline == {'algorithm': Part('fedavg')}
  assert table.blocks[2].baseline == {
      'algorithm': Part('moon', (('mu', 1),))}
  assert table.published[0] == Published(
      {'algorithm': Part('moon'), 'partition.beta': .5, 'algorithm.mu': 5},
      'accuracy', 69.1, .4, None, '')


def test_budgets_replace_settings_the_nearest_first(read):
  table = read('smoke')
  assert settings(table, 'num_rounds', 'local_epochs', 'partition.beta') == [
      {(4, 1, .5)}, {(4, 1, .5)}, {(4, 6, .5)}]
  assert table.blocks[0].replaced['partition.beta'] == (.1, .5)
  assert settings(read('small'), 'num_rounds', 'local_epochs')[0] == {(10, 10)}


def test_the_command_line_replaces_all(read):
  table = read('smoke', {'num_rounds': 2, 'data_dir': 'd'})
  assert settings(table, 'num_rounds') == [{(2,)}] * 3 and table.changed
  assert not read('smoke', {'data_dir': 'd'}).changed


def test_runs_and_budgets_that_a_file_lacks_are_errors(tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text('dataset = "digits"\nmodel = "mlp"\n"algorithm.mu" = [1, 5]\n'
                  '[[published]]\nalgorithm = "moon(mu=7)"\naccuracy = 60\n'
                  '[budget.small]\nnum_rounds = 2\n')
  with pytest.raises(UserError, match='block 1 of ..published.. must have '
                     r'settings of a run; got algorithm=moon\(mu=7\). Correct'):
    table_file.read(str(path))
  table_file.read(str(path), 'small')
  with pytest.raises(UserError, match='must be one that .*; got smoke. Give'):
    table_file.read(str(path), 'smoke', {'num_rounds': 1})


@pytest.mark.parametrize('text, message', [
    ('headline = "x"', "headline must be accuracy or rounds or time; got 'x'"),
    ('panels = ["x"]', "panels must be a list of names; got 'x'"),
    ('notes = [1]', 'notes must be a list of sentences; got 1'),
    ('baseline = {x = 1}', "baseline must name a setting of a run; got 'x'"),
    ('[budget.big]\nseed = 1', 'tables smoke or small; got big'),
    ('[budget.smoke]\nx = 1', "budget smoke must name a setting of a run"),
    ('[[published]]\nalgorithm = "moon"', 'must have one of accuracy, global'),
    ('[[published]]\naccuracy = 1\nrounds = 1', "got ['accuracy', 'rounds']"),
    ('[[published]]\naccuracy = "x"', "accuracy must be a number; got 'x'"),
    ('[[published]]\naccuracy = 1\nx = 1', 'must name a setting of a run'),
    ('budgets = "no.toml"', 'no.toml must be a file that can be read'),
])
def test_invalid_files_are_errors(text, message, tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text(f'dataset = "digits"\nmodel = "mlp"\n{text}\n')
  with pytest.raises(UserError) as error:
    table_file.read(str(path), 'smoke' if 'budget' in text else 'full')
  assert message in str(error.value)
  assert str(tmp_path) in str(error.value)
