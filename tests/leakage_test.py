"""What models and updates reveal: against hand-made cases and closed forms."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import optax
import pytest
import scipy.stats

import moon_jax as mj
from moon_jax import leakage
from moon_jax.errors import UserError
from support import tiny_federation


def test_confidence_is_the_logit_of_the_probability():
  logits = np.array([[2., -1., .5], [60., 0., 0.]])
  labels = np.array([2, 1])
  p = scipy.special.softmax(logits, axis=1)[range(2), labels]
  np.testing.assert_allclose(
      leakage.confidence(logits, labels), np.log(p / (1 - p)), rtol=1e-12)
  sure = leakage.confidence(logits[1:], np.array([0]))  # 1 - p is 0 in float64
  np.testing.assert_allclose(sure, 60 - np.log(2))


def test_membership_measures_by_hand():
  scores = np.array([4., 3., 3., 2., 1.])
  is_member = np.array([True, True, False, False, True])
  # Of 6 pairs: 4 > 3, 4 > 2, 3 = 3, 3 > 2, and the last below both.
  assert leakage.membership(scores, is_member) == pytest.approx({
      'auc': 3.5 / 6, 'advantage': 1 / 3, 'tpr_at_1%_fpr': 1 / 3})
  assert leakage.membership(-scores, ~is_member)['auc'] == 3.5 / 6


@pytest.mark.parametrize('num_others, rate', [(100, 1.), (99, .5)])
def test_the_rate_of_false_positives_includes_1_percent(num_others, rate):
  """Two members, between which are the scores of exactly one other."""
  scores = np.array([5., 3., 4., *np.zeros(num_others - 1)])
  found = leakage.membership(scores, np.arange(len(scores)) < 2)
  assert found['tpr_at_1%_fpr'] == rate


@pytest.mark.parametrize('is_global', [True, False])
def test_lira_is_the_ratio_of_gaussians(is_global):
  random = np.random.default_rng(0)
  is_member = random.permuted(
      np.arange(8)[:, None] < np.full(5, 4), axis=0)
  shadows = random.normal(size=(8, 5)) + 2 * is_member
  target = random.normal(size=5)
  ratio = leakage.lira(target, shadows, is_member, is_global)
  rest = [np.concatenate([
      x[kind] - x[kind].mean() for x, kind in zip(shadows.T, of_kind.T)])
          for of_kind in (is_member, ~is_member)]
  for n in range(5):
    log_p = []
    for kind, residual in zip((is_member, ~is_member), rest):
      own = shadows[kind[:, n], n]
      std = np.sqrt((residual**2).sum() / 15) if is_global else own.std(ddof=1)
      log_p.append(scipy.stats.norm.logpdf(target[n], own.mean(), std))
    assert ratio[n] == pytest.approx(log_p[0] - log_p[1])


def test_what_cannot_be_measured():
  for score in np.nan, np.inf:
    with pytest.raises(UserError, match='must be finite numbers; got 1 that'):
      leakage.membership(np.array([score, 1.]), np.array([True, False]))
  with pytest.raises(UserError, match='got 2 members of 2'):
    leakage.membership(np.zeros(2), np.ones(2, bool))
  with pytest.raises(UserError, match='got 1 for example 0. Train more'):
    leakage.lira(np.zeros(3), np.zeros((3, 3)), np.eye(3, dtype=int))
  half = np.arange(4)[:, None] % 2 == np.zeros(3)
  for name, confidence, last in (('confidence_N', np.nan, 0.),
                                 ('shadows_SN', 0., np.inf)):
    shadows = np.arange(12.).reshape(4, 3)
    shadows[3, 2] += last
    with pytest.raises(UserError, match=f'{name} must be finite numbers; got '):
      leakage.lira(np.array([0., 1., confidence]), shadows, half)
  with pytest.raises(UserError, match='models that agree'):
    leakage.lira(np.zeros(3), np.zeros((4, 3)), half)
  with pytest.raises(UserError, match=r'shape \[S, N\].*got \(4, 1\)'):
    leakage.lira(np.zeros(3), np.zeros((4, 1)), half)
  federation, before, gradient = after_one_step()
  for wrong in gradient['fc1'], jax.tree.map(np.zeros_like, gradient):
    with pytest.raises(UserError, match='and not zero; got another'):
      leakage.invert(federation, before, wrong, [3])


@functools.cache
def after_one_step():
  """Returns a federation, its model, and the gradient of its only example."""
  data = mj.load_dataset('digits')
  federation = mj.Federation(
      data=data, clients=[np.array([7])], model=mj.mlp(data.num_classes),
      algorithm=mj.fedavg(), local_steps=1, batch_size=1,
      optimizer='sgd(momentum=0, weight_decay=0)', learning_rate=.5,
      augment=False, keep_local_models=True)
  simulation = mj.Simulation(federation)
  before = jax.tree.map(np.copy, simulation.global_model())
  simulation.run_round()
  gradient = jax.tree.map(
      lambda w, new: (w - new) / .5, before['params'],
      simulation.local_models()[0]['params'])
  return federation, before, gradient


def error_of(federation, before, gradient):
  """Returns the mean square error of the inverted image, of values 0 to 1."""
  data = federation.data
  found = leakage.invert(
      federation, before, gradient, data.train_labels[[7]], num_steps=200)
  return np.mean((found - data.train_inputs[[7]] / 255.)**2)


def test_an_update_of_one_example_reveals_it():
  """Against the closed form: of a dense layer, dW = x db^T."""
  federation, before, gradient = after_one_step()
  first = gradient['fc1']
  unit = np.argmax(np.abs(first['bias']))
  exact = first['kernel'][:, unit] / first['bias'][unit]
  data = federation.data
  image = (data.train_inputs[7] / 255. - data.mean) / data.std
  np.testing.assert_allclose(exact, image.ravel(), atol=1e-3)
  assert error_of(federation, before, gradient) < 1e-3


@pytest.mark.long
def test_each_setting_of_an_inversion_has_an_effect():
  """The seed draws the first guess."""
  federation, before, gradient = after_one_step()
  invert = functools.partial(
      leakage.invert, federation, before, gradient,
      federation.data.train_labels[[7]])
  found = [invert(num_steps=8, **settings) for settings in (
      {}, {'seed': 1}, {'total_variation': 5.}, {'learning_rate': .05})]
  for a, b in itertools.combinations(found, 2):
    assert np.abs(a - b).max() > 1e-3


@pytest.mark.long
def test_noise_hides_the_example():
  federation, before, gradient = after_one_step()
  noise = optax.tree.random_like(jax.random.key(0), gradient)
  noisy = jax.tree.map(lambda g, n: g + .1 * n, gradient, noise)
  assert error_of(federation, before, noisy) > .1
  labels = federation.data.train_labels[[7]]
  rough, smooth = (np.abs(np.diff(leakage.invert(
      federation, before, noisy, labels, weight, num_steps=50), axis=2)).mean()
                   for weight in (0., 5.))
  assert smooth < .7 * rough


def test_logits_are_those_of_evaluation():
  federation = dataclasses.replace(tiny_federation.make(), eval_examples=0)
  simulation = mj.Simulation(federation)
  data = federation.data
  found = leakage.logits(
      federation, simulation.global_model(), data.test_inputs)
  accuracy = np.mean(found.argmax(1) == data.test_labels)
  assert accuracy == simulation.evaluate()['test_accuracy']
