"""Evaluation on several sets, and metrics, against a plain NumPy evaluation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_federation

import federation as federation_lib
from federation import solo
from moon_jax import models
from moon_jax.config import Config
from moon_jax.data import augment, sources
from moon_jax.distributed import devices
from moon_jax.errors import UserError
from moon_jax.simulation import build, evaluation, metric_functions
from moon_jax.simulation.simulation import Simulation

CONFIG = Config(
    dataset='digits', num_clients=4, algorithm='fedavg', num_rounds=2,
    local_epochs=1, model='mlp', validation_fraction=.2, eval_on='train',
    metrics='confusion,f1,per_class_accuracy,top5')


@pytest.fixture(scope='module')
def dataset():
  return sources.load('digits', '')


def logits_of(variables, dataset, inputs):
  outputs, _ = models.make('mlp', 10, 256).apply(
      variables, augment.normalize(
          jnp.asarray(inputs), dataset.mean, dataset.std),
      jnp.ones(len(inputs)), train=False)
  return np.asarray(outputs.logits, np.float64)


def loss_of(logits, labels):
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  return -log_p[np.arange(len(labels)), labels].mean()


def test_every_example_counts_once(monkeypatch):
  monkeypatch.setattr(evaluation, '_BATCH', 32)
  model = federation_lib.linear_model()
  images, labels = federation_lib.IMAGES[:75], federation_lib.LABELS[:75]
  keys = jax.random.split(jax.random.key(0), 2)
  variables_R = jax.vmap(lambda k: model.init(k, jnp.zeros((1, 2, 2, 1))))(keys)
  # The second says 0 of all, and would be right about padding.
  variables_R['params']['b'] = jnp.array([[0., 0, 0], [100., 0, 0]])
  mesh = devices.mesh(num_lanes=2)
  result, _ = evaluation.make_evaluate(federation_lib.program(model), mesh)(
      variables_R, (), evaluation.batched(images, labels, mesh))

  x = ((images.reshape(75, -1) / 255.) - .5) / .25
  for r in range(2):
    w, b = (np.asarray(variables_R['params'][k][r], np.float64) for k in 'wb')
    logits = x @ w + b
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert int(result.num_correct[r]) == (logits.argmax(1) == labels).sum()
    np.testing.assert_allclose(
        result.loss[r], -log_p[np.arange(75), labels].sum(), rtol=1e-5)


@pytest.mark.parametrize('shard_data', [False, True])
def test_each_set_has_its_own_examples(shard_data, dataset, monkeypatch):
  """In several chunks, of which none is full; on one device and on all."""
  monkeypatch.setattr(evaluation, '_BATCH', 16)
  monkeypatch.setattr(evaluation, '_STREAMED_BATCHES', 5)
  monkeypatch.setattr(Simulation, 'compile', lambda self: None)
  lines = []
  for lanes in 1, len(jax.devices()):
    federation = build.federation(dataclasses.replace(
        CONFIG, lanes=lanes, shard_data=shard_data), dataset)
    simulation = Simulation(federation)
    lines.append(simulation.evaluate())
  assert list(lines[0]) == list(lines[1])
  for name, value in lines[0].items():
    np.testing.assert_allclose(value, lines[1][name], rtol=1e-6)
  line, variables = lines[1], simulation.global_model()
  x, y = dataset.train_inputs, dataset.train_labels
  trained = np.concatenate(federation.clients)
  for name, inputs, labels in (
      ('test', dataset.test_inputs, dataset.test_labels),
      ('validation', x[federation.validation], y[federation.validation]),
      ('global_train', x[trained], y[trained])):
    logits = logits_of(variables, dataset, inputs)
    assert line[f'{name}_accuracy'] == (logits.argmax(1) == labels).mean()
    assert line[f'{name}_loss'] == pytest.approx(
        loss_of(logits, labels), rel=1e-5)
  logits = logits_of(variables, dataset, dataset.test_inputs)
  for name in CONFIG.metrics.split(','):
    expected = metric_functions.BUILT_IN[name](logits, dataset.test_labels)
    np.testing.assert_allclose(line[name], expected, rtol=1e-6)


def test_an_example_of_several_clients_counts_once(monkeypatch):
  monkeypatch.setattr(Simulation, 'compile', lambda self: None)
  federation = tiny_federation.make(
      clients=[np.arange(10), np.arange(5, 15)], eval_on='train')
  simulation = Simulation(federation)
  inputs, labels = (x[:15] for x in federation.data[1:3])
  outputs, _ = federation.model.apply(
      simulation.global_model(), jnp.asarray(inputs), jnp.ones(15), train=False)
  logits = np.asarray(outputs.logits, np.float64)
  line = simulation.evaluate()
  assert line['global_train_accuracy'] == (logits.argmax(1) == labels).mean()
  assert line['global_train_loss'] == pytest.approx(
      loss_of(logits, labels), rel=1e-5)


def test_without_the_flags_no_bit_changes(dataset):
  plain = dataclasses.replace(
      CONFIG, validation_fraction=0., eval_on='test', metrics='')
  few = dataclasses.replace(CONFIG, eval_examples=150, validation_fraction=0.)
  expected, found, of_few = (
      Simulation(build.federation(config, dataset)).evaluate()
      for config in (plain, dataclasses.replace(
          CONFIG, validation_fraction=0.), few))
  assert list(expected) == ['test_accuracy', 'test_loss']
  assert expected['test_accuracy'] == found['test_accuracy']
  assert expected['test_loss'] == pytest.approx(found['test_loss'], rel=1e-6)
  assert np.sum(found['confusion']) == len(dataset.test_labels)
  assert np.sum(of_few['confusion']) == of_few['test_examples'] == 150


def test_several_models_have_their_mean(two_devices):
  count = lambda logits, labels: {
      'largest': logits.max(), 'right': np.sum(logits.argmax(1) == labels)}
  federation = tiny_federation.make(algorithm=solo(), metrics={'own': count})
  simulation = Simulation(federation)
  line, data = simulation.evaluate(), federation.data
  clients = jax.tree.map(lambda x: x[0], simulation.state.clients)
  found = []
  for i in range(3):
    outputs, _ = federation.model.apply(
        jax.tree.map(lambda x, i=i: x[i], clients),
        jnp.asarray(data.test_inputs), jnp.ones(5), train=False)
    logits = np.asarray(outputs.logits, np.float64)
    found.append(((logits.argmax(1) == data.test_labels).mean(),
                  loss_of(logits, data.test_labels), logits.max()))
  accuracies, losses, largest = np.transpose(found)
  assert line['test_accuracy'] == pytest.approx(accuracies.mean())
  assert line['test_accuracy_std'] == pytest.approx(accuracies.std())
  assert line['test_accuracy_std'] > 0
  assert line['test_loss'] == pytest.approx(losses.mean(), rel=1e-5)
  assert line['right'] == pytest.approx(5 * line['test_accuracy'])
  assert line['largest'] == pytest.approx(largest.mean(), rel=1e-5)


def test_a_loss_that_is_not_finite_is_null_except_on_the_test_set():
  federation = tiny_federation.make()
  data = federation.data
  inputs = data.train_inputs.copy()
  inputs[3:] = 1e38  # finite, and infinite once divided by std
  simulation = Simulation(dataclasses.replace(
      federation, data=data._replace(train_inputs=inputs, std=(1e-3,)),
      clients=[[0], [1], [2]], validation=np.array([3, 4])))
  line = simulation.evaluate()
  assert line['validation_loss'] is None and np.isfinite(line['test_loss'])


@pytest.mark.parametrize('validation, words', [
    ([], 'from 0 to 18.*at least one; got float64 none'),
    ([19], 'from 0 to 18.*got int64 from 19'),
    ([.5], 'got float64'), ([4, 1], 'got 1 of them, such as 1. Partition')])
def test_invalid_validation_examples_are_refused(validation, words):
  with pytest.raises(UserError, match=words):
    tiny_federation.make(
        clients=[[0, 1], [2, 3]], validation=np.array(validation))


def test_a_federation_checks_its_metrics():
  with pytest.raises(UserError, match='own must return a number'):
    tiny_federation.make(metrics={'own': lambda logits, labels: 'x'})
  with pytest.raises(UserError, match='top5 needs more than 5 classes; got 2'):
    tiny_federation.make(metrics={'top5': metric_functions.top5})


def test_clients_of_another_split_are_refused(dataset):
  config = dataclasses.replace(CONFIG, validation_fraction=.1)
  with pytest.raises(UserError, match='needs clients of its own split'):
    build.federation(config, dataset, clients=[np.arange(20)] * 4)
