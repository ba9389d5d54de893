"""The programs of moon_jax in the comparison with other frameworks run."""

import numpy as np
import pytest
from sklearn import datasets

from docs_pages import commands, config_of, ROOT
from moon_jax.training import run

pytestmark = pytest.mark.bench
HERE = ROOT / 'benchmarks' / 'frameworks'
MOON, OWN_MOON, FEDDYN, FEDAVG, MODEL = commands(
    (HERE / 'README.md').read_text(encoding='utf-8'))


@pytest.mark.parametrize('command', [FEDDYN, FEDAVG, MODEL])
def test_our_programs_learn(command, tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(HERE)
  monkeypatch.chdir(tmp_path)
  x, y = datasets.load_digits(return_X_y=True)
  x = (x / 16).astype(np.float32)
  np.savez('mine.npz', x_train=x[:1400], y_train=y[:1400], x_test=x[1400:],
           y_test=y[1400:], client_train=np.arange(1400) % 10)
  summary = run.run(config_of(command, checkpoint_every=0))
  assert summary['test_accuracy'] > .5


def test_moon_written_by_the_user_equals_ours(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(HERE)
  small = {'dataset': 'digits', 'data_dir': '', 'model': 'mlp',
           'num_clients': 3, 'num_rounds': 3, 'local_epochs': 1,
           'learning_rate': .1, 'checkpoint_every': 0}
  losses = [run.run(config_of(
      command, workdir=str(tmp_path / str(i)), **small))['test_loss']
            for i, command in enumerate((MOON, OWN_MOON))]
  assert losses[0] == pytest.approx(losses[1], rel=1e-3)
