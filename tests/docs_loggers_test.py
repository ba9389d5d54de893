"""The examples of docs/loggers.md run, one after another."""

import pathlib
import re

DOCS = pathlib.Path(__file__).parents[1] / 'docs'


def test_the_examples_run(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  blocks = re.findall(r'```python\n(.*?)```', (DOCS / 'loggers.md').read_text(
      encoding='utf-8'), re.DOTALL)
  assert len(blocks) == 3
  names: dict = {}
  for block in blocks:
    exec(compile(block, 'loggers.md', 'exec'), names)
  assert (tmp_path / 'loop.csv').read_text().count('\n') == 4
  assert len(list((tmp_path / 'boards' / 'digits').iterdir())) == 1
  # The run is complete when the last logger is given; it gets all rounds.
  printed = capsys.readouterr().out.splitlines()
  assert [line.split(':')[0] for line in printed if '%' in line] == [
      'round 1', 'round 2', 'round 3']
