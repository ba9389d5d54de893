"""The program of docs/workdir.md loads a trained model into PyTorch."""

import pathlib
import re

import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import Config
from moon_jax.training import run

torch = pytest.importorskip('torch', reason="pip install 'moon_jax[bench]'")
_ROOT = pathlib.Path(__file__).parents[1]


def test_the_program_computes_the_same_logits(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  flags = dict(line[2:].partition('=')[::2] for line in (
      _ROOT / 'experiments' / 'quickstart.flags').read_text().splitlines()
      if line.startswith('--'))
  kinds = {name: type(getattr(Config(), name)) for name in flags}
  run.run(Config(**{name: kind(flags[name]) for name, kind in kinds.items()}
                 | {'num_rounds': 1, 'workdir': 'runs/quickstart'}))
  text = (_ROOT / 'docs' / 'workdir.md').read_text(encoding='utf-8')
  [code] = [block for block in re.findall(r'```python\n(.*?)```', text, re.S)
            if 'torch' in block]
  values = {}
  exec(code, values)
  images = mj.load_dataset('digits').test_inputs[:100]
  model, variables = mj.load('runs/quickstart')
  expected = np.asarray(model(variables, images).logits)
  with torch.no_grad():
    found = values['logits'](images.copy()).numpy()
  assert np.ptp(expected) > 1e-2
  np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
