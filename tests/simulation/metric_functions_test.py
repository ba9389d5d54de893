"""Metrics of logits against scikit-learn, plain loops and numbers by hand."""

import dataclasses
import json
import pathlib
import re
import tracemalloc

import numpy as np
import pytest
import sklearn.metrics

from moon_jax.data.client_tests import ClientTests
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError
from moon_jax.models import mlp
from moon_jax.simulation import client_metrics
from moon_jax.simulation import metric_functions as metrics
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation

ROOT = pathlib.Path(__file__).parents[2]
# Predictions 0, 1, 1, 2; class 3 has neither examples nor predictions.
LOGITS = np.array([[2., 1, 0, 0], [0, 3, 1, 0], [1, 2, 0, 0], [0, 0, 5, 0]],
                  np.float32)
LABELS = np.array([0, 1, 0, 1], np.int32)


@pytest.fixture(params=[0, 1, 2])
def case(request):
  """Logits of 8 classes, of which the last has no examples."""
  random = np.random.RandomState(request.param)
  labels = random.randint(7, size=200).astype(np.int32)
  logits = random.randn(200, 8) + 2 * np.eye(8)[labels]
  return logits.astype(np.float32), labels


def test_they_equal_those_of_scikit_learn(case):
  logits, labels = case
  predicted, all_classes = logits.argmax(1), np.arange(8)
  np.testing.assert_array_equal(
      metrics.confusion(logits, labels),
      sklearn.metrics.confusion_matrix(labels, predicted, labels=all_classes))
  np.testing.assert_allclose(
      metrics.per_class_accuracy(logits, labels)[:7],
      sklearn.metrics.recall_score(
          labels, predicted, labels=all_classes[:7], average=None))
  many = np.eye(26, dtype=np.float32)  # 25 * 26 is above 255
  assert metrics.f1(many, np.arange(26, dtype=np.uint8)) == 1
  assert metrics.balanced_accuracy(logits, labels) == pytest.approx(
      sklearn.metrics.recall_score(
          labels, predicted, labels=all_classes[:7], average='macro'))
  assert metrics.f1(logits, labels) == pytest.approx(
      sklearn.metrics.f1_score(labels, predicted, average='macro'))
  assert metrics.top5(logits, labels) == pytest.approx(
      sklearn.metrics.top_k_accuracy_score(
          labels, logits, k=5, labels=all_classes))


def test_f1_of_dense_labels_is_the_dice_coefficient(case):
  logits, labels = case
  labels = np.where(np.arange(len(labels)) % 5, labels, -1)
  size = len(labels) // 2 * 2
  images = labels[:size].reshape(2, -1)
  dense = logits[:size].reshape(2, -1, logits.shape[1])
  counted, predicted = images >= 0, dense.argmax(-1)
  dice = []
  for k in np.union1d(images[counted], predicted[counted]):
    a, b = (images == k) & counted, (predicted == k) & counted
    dice.append(2 * (a & b).sum() / (a.sum() + b.sum()))
  assert metrics.f1(dense, images) == pytest.approx(np.mean(dice))


def test_the_calibration_error_equals_a_plain_loop(case):
  logits, labels = case
  p = np.exp(logits.astype(np.float64))
  p /= p.sum(1, keepdims=True)
  expected = 0.
  for low in range(15):
    bin_N = (low / 15 < p.max(1)) & (p.max(1) <= (low + 1) / 15)
    if bin_N.any():
      is_correct = p[bin_N].argmax(1) == labels[bin_N]
      expected += bin_N.mean() * abs(
          is_correct.mean() - p[bin_N].max(1).mean())
  assert metrics.ece(logits, labels) == pytest.approx(expected)


@pytest.mark.parametrize('logit', [np.nan, np.inf])
def test_a_confidence_that_is_no_number_has_no_calibration_error(logit):
  logits = np.zeros((4, 3), np.float32)
  logits[1] = logit
  assert np.isnan(metrics.ece(logits, np.zeros(4, int)))


def test_a_confidence_between_two_bins_is_in_the_lower_one():
  """1/3 ends the fifth of 15 bins, and the second example is in the sixth."""
  logits = np.array([[0., 0, 0], [.1, 0, 0]])
  confidence = np.exp(.1) / (np.exp(.1) + 2)
  assert metrics.ece(logits, np.array([0, 1])) == pytest.approx(
      ((1 - 1 / 3) + confidence) / 2)


def test_of_equal_logits_the_first_five_classes_are_the_top5():
  """Equal logits everywhere have 5 of 8 classes right, not all or none."""
  labels = np.arange(8, dtype=np.int32)
  assert metrics.top5(np.zeros((8, 8), np.float32), labels) == 5 / 8
  border = np.float32([[3, 1, 1, 2, 1, 1, 1, 0]] * 2)  # 0, 3, and 1, 2, 4
  assert metrics.top5(border, np.array([4, 5])) == 1 / 2


def test_results_are_json_and_means_over_models():
  found = metrics.compute(
      {**metrics.BUILT_IN, 'own': lambda z, y: {'sum': z.sum(), 'n': len(y)}}
      | {'top5': lambda z, y: np.inf} | dict.fromkeys(
          ('r2', 'recall_at_5'), lambda z, y: 1.), LOGITS[None], LABELS)
  assert json.loads(json.dumps(found, allow_nan=False)) == found
  assert found['per_class_accuracy'] == [.5, .5, None, None]
  assert found['confusion'][0] == [1, 1, 0, 0]
  assert found['top5'] is None and 'own' not in found
  assert (found['sum'], found['n']) == (15., 4)
  both = metrics.compute(
      {'largest': lambda z, y: z.max(0)}, np.stack([LOGITS, 3 * LOGITS]),
      LABELS)
  assert both == {'largest': [4., 6., 10., 0.]}


def test_an_own_metric_may_be_an_object_with_settings():
  @dataclasses.dataclass  # not hashable
  class Own:
    scale: float

    def __call__(self, logits, labels):
      return self.scale * len(labels)

  assert metrics.names({'own': Own(2.)}, LABELS, 4, 'regression') == ['own']


@pytest.mark.parametrize('result, words', [
    ('high', "must return a number, .* got str 'high' as 'own'"),
    ({'a': [[1], [1, 2]]}, 'must return a number, an array'),
    ({3: 1.}, 'must return a number, .* as 3'), (None, 'got NoneType'),
    ({'run': 1.}, "does not reserve; got 'run'"),  # of frames by run
    ({'test_accuracy': 1.}, "does not reserve; got 'test_accuracy'"),
    ({'f1': 1.}, "got 'f1'. Rename it")])
def test_other_results_are_refused(result, words):
  own = {'f1': metrics.f1, 'own': lambda logits, labels: result}
  with pytest.raises(UserError, match=words):
    metrics.names(own, LABELS, 4)


@pytest.mark.parametrize('name, labels, task', [
    ('top5', LABELS, 'classification'),
    ('recall_at_5', np.eye(5, dtype=np.int32), 'multilabel')])
def test_all_of_five_classes_would_be_among_the_five_largest(
    name, labels, task):
  metric = {name: metrics.BUILT_IN[name]}
  with pytest.raises(UserError, match=(
      f'{name} needs more than 5 classes; got 5. Remove {name}')):
    metrics.names(metric, labels, 5, task)


def test_a_metric_cannot_change_what_the_next_one_sees():
  def own(logits, labels):
    logits -= logits.max(1, keepdims=True)
    return 0.

  with pytest.raises(ValueError, match='read-only'):
    metrics.names({'own': own}, LABELS, 4)


def test_the_flag_names_known_metrics():
  assert list(metrics.from_flag('f1, ece')) == ['f1', 'ece']
  assert metrics.from_flag('') == {}
  for flag, words in (
      ('f2', "must be one of per_class_.* got 'f2'"),
      ('f1,', "got ''"), ('f1,f1', 'have one metric named f1'),
      ('a:own,b:own', 'have one metric named own'),
      ('no_such:own', 'with a source file; got no_such:own')):
    with pytest.raises(UserError, match=words):
      metrics.from_flag(flag)


def test_checks_of_a_federation_do_not_grow_with_its_test_set():
  """Neither with metrics, which see some examples of each class, nor without.
  """
  num_test, num_classes = 20_000, 500
  data = tiny_federation.make().data
  big = data._replace(
      test_inputs=np.zeros((num_test, 4), np.float32),
      test_labels=np.sort(np.arange(num_test) % num_classes),
      class_names=tuple(map(str, range(num_classes))))
  shapes = []

  def own(logits, labels):
    shapes.append(logits.shape)
    assert len({*labels.tolist()}) == num_classes
    return float(logits.mean())

  for found in {}, {'own': own}:
    tracemalloc.start()
    dataclasses.replace(tiny_federation.make(data=big, model=mlp(num_classes),
                                             metrics=found), seed=1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * num_test * num_classes / 4  # bytes of all logits
  assert len(shapes) == 2 and all(rows < 700 for rows, _ in shapes)


def test_metrics_are_checked_with_labels_of_evaluations():
  """Not with the first ones, all of one class, of which there is no AUC."""
  data = tiny_federation.make().data._replace(
      test_inputs=np.zeros((60, 4), np.float32),
      test_labels=np.repeat([0, 1], 30).astype(np.int32))
  shown = []
  tiny_federation.make(data=data, eval_examples=20, metrics={
      'own': lambda logits, labels: shown.append(labels) or 0.})
  np.testing.assert_array_equal(
      shown[0], data.with_test_examples(20).test_labels)
  assert {*shown[0]} == {0, 1}


def test_auroc_equals_scikit_learns():
  """A class without examples, or with all of them, has no curve."""
  from sklearn import metrics as reference

  rng = np.random.default_rng(0)
  logits = rng.standard_normal((60, 4)).astype(np.float32)
  labels = rng.integers(0, 4, 60)
  probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  assert metrics.auroc(logits, labels) == pytest.approx(
      reference.roc_auc_score(labels, probabilities, multi_class='ovr'))
  some = labels < 2
  assert metrics.auroc(logits[some], labels[some]) == pytest.approx(np.mean([
      reference.roc_auc_score(labels[some] == k, probabilities[some, k])
      for k in (0, 1)]))
  assert np.isnan(metrics.auroc(logits, np.zeros(60, int)))


def test_metrics_of_clients_are_those_of_their_examples():
  rng = np.random.default_rng(0)
  logits = rng.standard_normal((9, 4)).astype(np.float32)
  labels = np.array([0, 1, 2, 3, 0, 1, 2, 2, 2])

  def fails(z, y):
    raise ValueError('a single class') if len({*y}) == 1 else TypeError

  values = metrics.client_values(
      {'f1': metrics.f1, 'auroc': metrics.auroc, 'fails': fails,
       'confusion': metrics.confusion},
      [(2, logits[:6], labels[:6]), (0, logits[6:], labels[6:])], 4)
  assert {*values} == {'f1', 'auroc'}
  np.testing.assert_array_equal(values['f1'], [
      metrics.f1(logits[6:], labels[6:]), np.nan,
      metrics.f1(logits[:6], labels[:6]), np.nan])
  np.testing.assert_array_equal(values['auroc'], [
      np.nan, np.nan, metrics.auroc(logits[:6], labels[:6]), np.nan])


def test_clients_have_their_own_values_of_tasks_with_several_labels():
  """Of unlike numbers of held-out examples, and labels [N, 3]."""
  random = np.random.default_rng(0)
  labels = random.integers(2, size=(24, 3)).astype(np.int32)
  inputs = random.normal(size=(24, 4)).astype(np.float32)
  data = Dataset('tiny', inputs[:19], labels[:19], inputs[19:], labels[19:],
                 class_names=('a', 'b', 'c'), task='multilabel')

  def mine(logits, labels):
    assert logits.shape == labels.shape
    return np.mean(np.abs(logits) * labels)

  held = [np.arange(10, 11), np.arange(11, 16), np.arange(16, 19)]
  simulation = Simulation(tiny_federation.make(
      data=data, clients=np.split(np.arange(10), [3, 7]), model=mlp(3),
      client_tests=ClientTests(held), evaluate_clients=True,
      evaluate_all=True, keep_local_models=True, metrics={'mine': mine}))
  simulation.run_round()
  line = simulation.evaluate_clients()
  local = simulation.local_models()

  def values(models):
    return [mine(np.asarray(simulation.federation.model.apply(
        model, inputs[index], np.ones(len(index)), train=False)[0].logits),
                 labels[index]) for model, index in zip(models, held)]

  expected = {'global': values([simulation.global_model()] * 3),
              'local': values([local[client] for client in range(3)])}
  expected['personal'] = expected['global']  # FedAvg has no others
  for name, values_C in expected.items():
    np.testing.assert_allclose(
        line['clients'][f'{name}_heldout_mine'], values_C, rtol=1e-5)
    for ending, value in {'': np.mean(values_C), '_std': np.std(values_C),
                          '_worst': np.min(values_C),
                          '_worst_tenth': np.min(values_C)}.items():
      assert line[f'{name}_heldout_mine{ending}'] == pytest.approx(
          value, rel=1e-5)


def test_a_metric_with_the_name_of_a_result_of_the_task_is_not_that_result():
  outcomes = client_metrics.Outcomes(
      {'accuracy': np.array([1., 2.])}, np.array([4., 2.]), np.array([2, 2]),
      {'accuracy': np.array([7., 8.]), 'loss': np.array([9., 9.])})
  line = client_metrics.over_clients('x', outcomes)
  assert outcomes.columns('x') == {'x_accuracy': [.5, 1.]}
  assert line == {
      'x_accuracy': .75, 'x_accuracy_weighted': .75, 'x_accuracy_std': .25,
      'x_accuracy_worst_tenth': .5, 'x_accuracy_worst': .5, 'x_loss': 1.5}


def test_the_worst_clients_of_an_error_have_the_highest_values():
  """Of all endings of names that the page of metrics lists."""
  text = ' '.join((ROOT / 'docs' / 'metrics.md').read_text().split())
  endings = re.findall('`(.*?)`', re.findall(
      'lower ones if it ends in (.*?), and otherwise', text)[0])
  assert len(endings) == 9
  zeros = np.zeros(2)
  line = client_metrics.over_clients('x', client_metrics.Outcomes(
      {}, zeros, zeros + 1, dict.fromkeys(
          ['brier', *(f'brier_{ending}' for ending in endings)],
          np.array([.2, .7]))))
  for ending in endings:
    assert line[f'x_brier_{ending}_worst'] == .7
    assert line[f'x_brier_{ending}_worst_tenth'] == .7
  assert line['x_brier_worst'] == line['x_brier_worst_tenth'] == .2


def test_average_precision_equals_scikit_learns(case):
  logits, labels = case
  logits[::7] = logits[0]  # ties
  p = np.exp(logits.astype(np.float64))
  p /= p.sum(1, keepdims=True)
  assert metrics.average_precision(logits, labels) == pytest.approx(
      sklearn.metrics.average_precision_score(
          np.eye(8)[labels][:, :7], p[:, :7], average='macro'))


def test_metrics_of_several_labels_equal_scikit_learns(case):
  logits, labels = case
  several = (np.eye(8)[labels] + np.eye(8)[labels[::-1]] > 0)[:, :7]
  for ours, theirs in ((metrics.auroc, sklearn.metrics.roc_auc_score), (
      metrics.average_precision, sklearn.metrics.average_precision_score)):
    assert ours(logits[:, :7], several.astype(np.int32)) == pytest.approx(
        theirs(several, logits[:, :7], average='macro'))
  found = sum(is_label[row.argsort()[-5:]].sum()
              for is_label, row in zip(several, logits[:, :7]))
  assert metrics.recall_at_5(logits[:, :7], several) == pytest.approx(
      found / several.sum())


def test_perplexity_equals_that_of_the_log_loss(case):
  """Also of tokens at positions, where -1 does not count."""
  logits, labels = case
  p = np.exp(logits.astype(np.float64))
  p /= p.sum(1, keepdims=True)
  expected = np.exp(sklearn.metrics.log_loss(labels, p, labels=np.arange(8)))
  assert metrics.perplexity(logits, labels) == pytest.approx(expected)
  tokens = labels.reshape(50, 4).copy()
  tokens[:, 1] = -1
  assert metrics.perplexity(logits.reshape(50, 4, 8), tokens) == pytest.approx(
      np.exp(sklearn.metrics.log_loss(
          labels[np.arange(200) % 4 != 1], p[np.arange(200) % 4 != 1],
          labels=np.arange(8))))


def test_r2_equals_scikit_learns(case):
  outputs = case[0][:, :3]
  targets = (outputs + np.random.RandomState(0).randn(200, 3) * [1, 2, 9]
             ).astype(np.float32)
  assert metrics.r2(outputs, targets) == pytest.approx(
      sklearn.metrics.r2_score(targets, outputs), abs=1e-6)
  assert metrics.r2(outputs[:, :1], targets[:, 0]) == pytest.approx(
      sklearn.metrics.r2_score(targets[:, 0], outputs[:, 0]), abs=1e-6)
  assert np.isnan(metrics.r2(outputs, np.ones_like(targets)))


@pytest.mark.parametrize('name, task', [
    ('f1', 'multilabel'), ('r2', 'classification'), ('auroc', 'tokens'),
    ('perplexity', 'regression')])
def test_metrics_of_other_tasks_are_refused(name, task):
  with pytest.raises(UserError, match=f'metrics={name} is for .*got {task}'):
    metrics.names({name: metrics.BUILT_IN[name]}, np.zeros((4, 2), int), 2,
                  task)


def test_metrics_of_tasks_are_recorded_fields():
  for name, task, labels in (
      ('perplexity', 'tokens', np.zeros((4, 3), int)),
      ('r2', 'regression', np.zeros((4, 2))),
      ('average_precision', 'multilabel', np.ones((4, 2)))):
    assert metrics.names(
        {name: metrics.BUILT_IN[name]}, labels, 2, task) == [name]
