"""Warnings of data and outputs that train to nothing, before they train."""

import re
import warnings

from flax import linen as nn
import numpy as np
import pytest

import moon_jax as mj

_random = np.random.RandomState(0)
X = _random.randn(40, 4).astype(np.float32)
Y = (np.arange(40) % 2).astype(np.int32)


class Net(nn.Module):
  """A linear network, with or without softmax."""

  has_softmax: bool = False

  @nn.compact
  def __call__(self, x):
    x = nn.Dense(2)(x.reshape(len(x), -1))
    return nn.softmax(x) if self.has_softmax else x


def simulation(inputs=X, labels=Y, model=None, **changes):
  data = mj.Dataset('mine', inputs, labels, inputs[:8], labels[:8], ('a', 'b'))
  settings = {name: changes.pop(name) for name in ('learning_rate', 'task')
              if name in changes}
  return mj.Simulation(mj.Federation(
      data=data._replace(**changes), clients=[range(20), range(20, 40)],
      model=model or mj.from_flax(Net()), algorithm=mj.fedavg(), batch_size=5,
      local_epochs=1, **settings))


def found_in(make):
  """Returns the text of the warnings of a call."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    make()
  return [str(warning.message) for warning in caught
          if issubclass(warning.category, UserWarning)]


SHIFTED = X + np.float32([0, 0, 300, 0])


@pytest.mark.parametrize('inputs', [
    SHIFTED, SHIFTED.astype(np.float64)[:, None, None],
    X * np.float32([1, 1, 50, 1])])
def test_features_that_are_not_normalized(inputs):
  """Of any number of axes and any float; obeyed, nothing is said."""
  message, = found_in(lambda: simulation(inputs))
  rows = inputs.reshape(-1, 4)
  mean, std = rows.mean(0), rows.std(0)
  for word in ('train_inputs are not normalized', 'feature 2', f'{mean[2]:.4g}',
               f'deviation {std[2]:.3g}'):
    assert word in message, message
  code = re.search(r'Give (mean=.*, std=.*) \(1 for', message)  # is obeyed
  assert found_in(lambda: simulation(
      inputs, **eval(f'dict({code[1]})', {'x': inputs}))) == []


def test_features_that_are_tiny_and_those_that_are_fine():
  assert 'not normalized' in found_in(lambda: simulation(X * 1e-4))[0]
  for inputs in X + 2, np.uint8(np.arange(40 * 4).reshape(40, 2, 2, 1)):
    assert found_in(lambda: simulation(inputs)) == []


def test_targets_that_are_not_normalized_and_the_advice_of_a_divergence():
  y = np.stack([X.sum(1), 5000 + 900 * X[:, 0]], 1)
  message, = found_in(lambda: simulation(labels=y, task='regression'))
  assert 'train_labels are not normalized: feature 1 has mean' in message
  assert '(y - mean) / std' in message
  z = (y - y.mean(0)) / y.std(0)
  assert found_in(lambda: simulation(labels=z, task='regression')) == []
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    diverging = simulation(1e4 * SHIFTED, learning_rate=1e30)
  with pytest.raises(ArithmeticError, match='train_inputs are not normalized.*'
                     'or lower learning_rate'):
    diverging.run(2)


@pytest.mark.parametrize('part', ['train', 'test'])
def test_one_class_only(part):
  labels = {f'{part}_labels': np.ones(40 if part == 'train' else 8, np.int32)}
  message, = found_in(lambda: simulation(**labels))
  assert f'{part}_labels are class 1 (b)' in message


def test_probabilities_that_are_taken_for_logits():
  message, = found_in(lambda: simulation(model=mj.from_flax(Net(True))))
  assert 'softmax' in message and 'data_warnings_test.py' in message
  own = mj.from_flax(Net(True))
  made = mj.Model(own.init, lambda variables, inputs, mask_B, train: (
      own.apply(variables, inputs, mask_B, train)))
  assert 'softmax' in found_in(lambda: simulation(model=made))[0]
