"""The commands and the file of docs/sweeps.md."""

import pathlib
import re
import shlex

from moon_jax.cli import command_line
from moon_jax.config import Config
from moon_jax.sweep import __main__ as command_flags
from moon_jax.sweep import command, values

_ROOT = pathlib.Path(__file__).parents[1]
_TEXT = (_ROOT / 'docs' / 'sweeps.md').read_text(encoding='utf-8')


def sweep_of(line):
  """Returns the named sweep of a command as it is printed."""
  words = shlex.split(line)[3:]
  grids = [word for word, before in zip(words[1:], words) if before == '--grid']
  given = dict(word.removeprefix('--').split('=', 1)
               for word in words if word.startswith('--') and '=' in word)
  path = given.pop('sweep', '')
  given.pop('max_runs', None)
  file = given.pop('flagfile', '')
  of_files = command_line.settings_of_file(file, '') if file else {}
  config = Config(**{
      name: values.TYPES[name](value) for name, value in given.items()})
  return command.build(config, command_line.Given(given, of_files), grids, path)


def test_the_commands_are_those_sweeps(monkeypatch, tmp_path):
  toml, = re.findall(r'```toml\n(.*?)```', _TEXT, re.DOTALL)
  (tmp_path / 'methods.toml').write_text(toml, encoding='utf-8')
  (tmp_path / 'experiments').symlink_to(_ROOT / 'experiments')
  monkeypatch.chdir(tmp_path)
  grid, merged, dry, file, changed, shared = (
      sweep_of(line) for line in re.findall(
          r'^python -m moon_jax.sweep .*', _TEXT, re.MULTILINE))
  assert len(grid.sweep.configs) == len(dry.sweep.configs) == 6
  assert (len(merged.sweep.configs), merged.sweep.merged) == (3, 1)
  fedavg = merged.sweep.configs[0]
  assert (fedavg.algorithm, fedavg.mu, fedavg.local_epochs) == ('fedavg', 1, 5)
  assert (len(file.sweep.configs), file.name) == (9, 'methods')
  assert [c.algorithm for c in file.sweep.configs] == ['fedavg'] * 3 + (
      ['moon'] * 6)
  assert len(changed.sweep.configs) == 8
  assert shared.sweep == grid.sweep
  assert {c.num_rounds for c in changed.sweep.configs} == {10}


def test_all_flags_of_the_command_are_listed():
  rows = re.findall(r'^\| `--(\w+)` \|', _TEXT, re.MULTILINE)
  flags = [command_flags._GRID, command_flags._SWEEP,
           command_flags._DRY_RUN, command_flags._MAX_RUNS, command_flags._PART]
  assert rows == [flag.name for flag in flags]
