"""The worked examples: FedDyn, against a plain loop, and data of one's own."""

import dataclasses
import importlib.util
import json
import pathlib
import re
import shlex

import jax
import numpy as np
import pytest

import federation
from federation import assert_trees_close
from federation import Federation
from federation import HPARAMS
from federation import IMAGES
from federation import LABELS
from federation import NUM_CLASSES
from federation import SIZES
import moon_jax
import moon_jax as mj
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.config import Config
from moon_jax.data import augment
from moon_jax.data import cohort as cohort_lib
from moon_jax.data.sources import arrays
from moon_jax.training import run

DOCS = pathlib.Path(__file__).parents[1] / 'docs'
COHORTS = [(0, 1, 4, 5), (7, 2, 1, 3), (6, 5, 4, 0)]


@pytest.fixture(scope='module')
def feddyn():
  spec = importlib.util.spec_from_file_location('feddyn', DOCS / 'feddyn.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return lambda alpha: module.feddyn(Config(num_clients=len(SIZES)), alpha)


def test_with_a_vanishing_alpha_its_clients_are_fedavgs(feddyn):
  """And its server takes the mean, plus what the clients moved."""
  ours, theirs = (Federation(a, keep_models=True)
                  for a in (feddyn(1e-6), fedavg()))
  (_, found), (_, expected) = (f.round(COHORTS[0]) for f in (ours, theirs))
  assert_trees_close(found.models_J, expected.models_J)


def test_it_equals_a_plain_numpy_loop(feddyn):
  alpha = .1
  federated = Federation(feddyn(alpha), num_lanes=2)
  w = np.concatenate([
      np.asarray(federated.state.variables['params'][k][0], np.float64).ravel()
      for k in 'wb'])
  x_all = ((IMAGES.reshape(len(IMAGES), -1) / 255.) - .5) / .25
  x_all = np.concatenate([x_all, np.ones((len(x_all), 1))], 1)
  lr, momentum, decay = (
      HPARAMS[k] for k in ('learning_rate', 'momentum', 'weight_decay'))
  g, h = np.zeros((len(SIZES), w.size)), np.zeros(w.size)
  for t, cohort in enumerate(COHORTS):
    federated.round(cohort)
    local = {}
    for c in cohort:
      wi, v = w.copy(), 0
      for epoch in range(2):
        order = federation.order(t, epoch, c)
        stop = max(len(order) // 8, 1) * 8
        for batch in np.split(order[:stop], range(8, min(stop, len(order)), 8)):
          logits = x_all[batch] @ wi.reshape(-1, NUM_CLASSES)
          p = np.exp(logits - logits.max(1, keepdims=True))
          p /= p.sum(1, keepdims=True)
          error = (p - np.eye(NUM_CLASSES)[LABELS[batch]]) / len(batch)
          v = momentum * v + ((x_all[batch].T @ error).ravel() - g[c]
                              + alpha * (wi - w) + decay * wi)
          wi = wi - lr * v
      local[c] = wi
    for c, wi in local.items():
      g[c] -= alpha * (wi - w)
      h -= alpha * (wi - w) / len(SIZES)
    total = sum(SIZES[c] for c in cohort)
    w = sum(SIZES[c] / total * wi for c, wi in local.items()) - h / alpha
  found = np.concatenate([
      np.ravel(federated.state.variables['params'][k][0]) for k in 'wb'])
  np.testing.assert_allclose(found, w, atol=3e-6)
  np.testing.assert_allclose(
      np.concatenate([np.reshape(federated.state.clients[k][0], (8, -1))
                      for k in 'wb'], 1), g, atol=1e-6)


def test_it_keeps_the_contract(feddyn, compilations):
  one, several = (Federation(feddyn(.1), num_lanes=lanes, num_jobs=jobs)
                  for lanes, jobs in ((1, 4), (3, 7)))
  one.round(COHORTS[0])
  compilations.clear()
  for cohort in COHORTS[1:]:
    one.round(cohort)
  assert not compilations
  for cohort in COHORTS:
    several.round(cohort[::-1])
  assert_trees_close(one.state._replace(key=()), several.state._replace(key=()),
                     atol=3e-6)
  absent = [i for i in range(len(SIZES)) if i not in COHORTS[0]]
  before = jax.tree.map(lambda x: np.array(x[:, absent]), one.state.clients)
  one.round(COHORTS[0])
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[:, absent]),
               before, one.state.clients)


@pytest.mark.parametrize('page, index, least', [
    ('user_algorithm.md', 0, .8), ('user_algorithm.md', 1, .8),
    ('user_data.md', -1, .9), ('user_model.md', 0, .8)])
def test_the_commands_of_the_page_learn(page, index, least, tmp_path,
                                        monkeypatch):
  text = (DOCS / page).read_text(encoding='utf-8')
  words = shlex.split(
      re.findall(r'python -m moon_jax.train (.*)', text)[index])
  given = dict(word.removeprefix('--').split('=', 1) for word in words)
  kinds = {name: type(getattr(Config(), name)) for name in given}
  monkeypatch.syspath_prepend(DOCS)
  summary = run.run(Config(
      **{name: kinds[name](value) for name, value in given.items()},
      workdir=str(tmp_path), checkpoint_every=0))
  assert summary['test_accuracy'] > least
  if page != 'user_model.md':
    return
  data = mj.load_dataset(given['dataset'])
  model, variables = mj.load(tmp_path)
  logits = np.asarray(model(variables, data.test_inputs).logits)
  accuracy = (logits.argmax(1) == data.test_labels).mean()
  assert accuracy == pytest.approx(summary['test_accuracy'], abs=1e-9)


def test_the_example_of_server_hyperparameters_runs(capsys):
  text = (DOCS / 'user_algorithm.md').read_text(encoding='utf-8')
  (example,) = [code for code in re.findall(
      r'```python\n(.*?)```', text, re.DOTALL) if "hparams['step']" in code]
  exec(compile(example, 'user_algorithm.md', 'exec'), {})
  last = capsys.readouterr().out.splitlines()[-1].split()
  assert last[0] == '5' and float(last[1]) > .7


def test_the_python_examples_of_models_run(capsys):
  """And the class on the page is that of the file."""
  text = (DOCS / 'user_model.md').read_text(encoding='utf-8')
  blocks = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  assert blocks[0] in (DOCS / 'dropout_net.py').read_text(encoding='utf-8')
  exec(compile(blocks[1], 'user_model.md', 'exec'), {})
  assert float(capsys.readouterr().out.split()[-1]) > .5
  nnx = next(block for block in blocks if 'nnx.Module' in block)
  names = {}
  exec(compile(f'from flax import nnx\nimport moon_jax as mj\n{nnx}',
               'user_model.md', 'exec'), names)
  params = names['model'].init(jax.random.key(0), None)['params']
  assert params['hidden/kernel'].shape == (1024, 64)


@pytest.fixture(scope='module')
def feddecorr():
  spec = importlib.util.spec_from_file_location(
      'feddecorr', DOCS / 'feddecorr.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_decorrelation_equals_numpy(feddecorr):
  """Padding, whatever it holds, and features without variance do not count."""
  rng = np.random.default_rng(0)
  features = rng.normal(size=(7, 4)) @ rng.normal(size=(4, 4))
  correlation = np.corrcoef(features.T)
  np.fill_diagonal(correlation, 0)
  expected = (correlation**2).sum() / 16
  padded = np.float32(np.concatenate([features, 1e3 * np.ones((2, 4))]))
  mask_B = np.float32([1] * 7 + [0] * 2)
  term = jax.value_and_grad(feddecorr.decorrelation)
  value, grad = term(padded, mask_B)
  assert value == pytest.approx(expected, rel=1e-5)
  assert not grad[7:].any() and grad[:7].any()
  padded[:, 2] = 0
  correlation[2] = correlation[:, 2] = 0
  value, grad = term(padded, mask_B)
  assert value == pytest.approx((correlation**2).sum() / 16, rel=1e-5)
  assert np.isfinite(grad).all()


def test_with_beta_0_feddecorr_is_fedavg(feddecorr):
  ours, theirs = (Federation(a) for a in (
      feddecorr.feddecorr(Config(), 0.), fedavg()))
  for f in (ours, theirs):
    f.hparams = {**f.hparams, 'beta': 0 * f.hparams['mu']}
    f.round(COHORTS[0])
  assert_trees_close(ours.state.variables, theirs.state.variables)


def options(command):
  """Returns the flags of a command as arguments of Config."""
  given = dict(word.removeprefix('--').split('=', 1)
               for word in shlex.split(command))
  return {name: type(getattr(Config(), name))(value)
          for name, value in given.items()}


def test_the_commands_about_held_out_data_measure_it(tmp_path, monkeypatch):
  text = (DOCS / 'client_data.md').read_text(encoding='utf-8')
  monkeypatch.syspath_prepend(DOCS)
  commands = re.findall(r'python -m moon_jax.train (.*)', text)
  assert len(commands) == 3
  for index, command in enumerate(commands):
    summary = run.run(Config(
        **options(command), workdir=str(tmp_path / str(index)),
        checkpoint_every=0))
    for name in re.findall(r'^\| `global_(\w+)` \|', text, re.MULTILINE):
      assert {f'global_{name}', f'local_{name}'} <= set(summary)
    assert summary['global_heldout_accuracy'] > .7


def test_the_example_about_held_out_data_runs(capsys):
  text = (DOCS / 'client_data.md').read_text(encoding='utf-8')
  (example,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  exec(compile(example, 'client_data.md', 'exec'), {})
  mean, worst, local = map(float, capsys.readouterr().out.split())
  assert worst <= mean and mean > .7 and local > .7


def test_the_run_of_a_million_clients_learns_with_20_000(tmp_path, monkeypatch):
  """Fewer clients and rounds than in the document; 100 train per round."""
  text = (DOCS / 'cross_device.md').read_text(encoding='utf-8')
  command, = re.findall(r'python -m moon_jax.train (.*)', text)
  assert command.count('1000000') == 2
  small = command.replace('1000000', '20000').replace('=0.0001', '=0.005')
  monkeypatch.syspath_prepend(DOCS)
  config = Config(**options(small), workdir=str(tmp_path))
  assert config.cohort_size() == 100
  config = dataclasses.replace(config, num_rounds=4)
  summary = run.run(config)
  assert summary['test_accuracy'] > .4  # of four classes
  trained = set().union(*cohort_lib.make(config))
  rows = (tmp_path / 'client_state' / '4.rows').stat().st_size
  client = 4 * 134_685  # the weights of a model and a number
  assert rows == pytest.approx(client * len(trained), rel=.01)


def test_data_larger_than_the_memory(tmp_path, monkeypatch, capsys):
  """The section of the page, as it is printed."""
  text = (DOCS / 'user_data.md').read_text(encoding='utf-8')
  section = text.partition('\n## Larger than')[2].partition('\n## ')[0]
  script = re.search(r'```python\n(.*?)```', section, re.S)[1]
  flags = options(re.search(r'moon_jax.train (.*)', section)[1])
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'big').mkdir()
  exec(script, {})
  summary = run.run(Config(**flags, workdir='run', checkpoint_every=0))
  assert summary['test_accuracy'] > .95
  assert 'training examples stay in their file' in capsys.readouterr().out


def test_own_data_names_what_arrays_are_read():
  text = (DOCS / 'user_data.md').read_text(encoding='utf-8')
  for name in arrays.REQUIRED + arrays.OPTIONAL:
    assert f'`{name}`' in text
  for name in set(augment.AUGMENTATIONS) - {'none'}:
    assert f'`{name}`' in text


def test_the_metrics_of_the_page_are_recorded(tmp_path, monkeypatch, capsys):
  """Its command; its function, on the best model; and its Python program."""
  text = (DOCS / 'metrics.md').read_text(encoding='utf-8')
  test_the_commands_of_the_page_learn(
      'metrics.md', -1, .9, tmp_path, monkeypatch)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  with open(tmp_path / 'metrics.jsonl', encoding='utf-8') as file:
    lines = [json.loads(line) for line in file]
  assert summary['brier'] == lines[-1]['brier'] and 'f1' in summary
  assert all('global_train_accuracy' in line for line in lines)
  functions = {}
  blocks = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  capsys.readouterr()
  for block in blocks:
    exec(compile(block, 'metrics.md', 'exec'), functions)
  assert len(capsys.readouterr().out.splitlines()) == 3
  assert blocks[0].strip() in (DOCS / 'brier.py').read_text().replace(
      '\n\n\n', '\n\n')
  data = moon_jax.load_dataset('digits')
  model, variables = moon_jax.load(tmp_path / 'best.safetensors')
  line = lines[summary['best_validation_round'] - 1]
  logits = np.asarray(model(variables, data.test_inputs).logits)
  assert functions['brier'](logits, data.test_labels) == pytest.approx(
      line['brier'], rel=1e-5)
