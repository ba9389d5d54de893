"""The code and the commands of docs/huggingface.md."""

import json
import pathlib
import re

from docs_partitions_test import config_of
import pytest

from moon_jax.simulation import checks
from moon_jax.training import run

pytest.importorskip('datasets', reason="pip install 'moon_jax[huggingface]'")
_PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'huggingface.md'


def test_the_page_runs(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  text = _PAGE.read_text(encoding='utf-8')
  make, train = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  exec(make, {})
  [command] = re.findall(r'^python -m moon_jax.train .*', text, re.M)
  run.run(config_of(command))
  summary = json.loads(pathlib.Path('runs/bars/summary.json').read_text())
  assert summary['test_accuracy'] > .9
  printed = ' '.join(text.split())
  line = next(line for line in capsys.readouterr().out.splitlines()
              if line.startswith('--dataset=hf:bars: '))
  assert line.removeprefix('--dataset=hf:bars: ') in printed
  exec(train, {})
  assert json.loads(capsys.readouterr().out.splitlines()[-1])[-1] > .8


def test_the_commands_of_the_hub_are_valid():
  commands = re.findall(r'^moon-jax train (.*)', _PAGE.read_text(), re.M)
  assert len(commands) == 2
  for command in commands:
    checks.validate(config_of(f'python -m moon_jax.train {command}'))
