"""The clients of pFedMe's authors."""

import numpy as np

from experiments import pfedme_mnist

# Numbers of examples that the authors' script prints for MNIST.
NUM_TRAIN = [3834, 3740, 2916, 3189, 2411, 2304, 2453, 2259, 2910, 3267, 2205,
             1165, 1650, 1388, 1335, 2738, 3234, 3021, 3133, 3318]
# MNIST's images of each class, and the classes of its first ten images.
OF_CLASS = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
FIRST = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_clients_have_the_sizes_that_the_published_script_prints():
  rest = np.array(OF_CLASS) - np.bincount(FIRST, minlength=10)
  labels = np.concatenate([FIRST, np.repeat(np.arange(10), rest)])
  train, test = pfedme_mnist.split(labels)
  assert list(map(len, train)) == NUM_TRAIN
  # The published accuracies are multiples of 1 / 17,499.
  assert sum(map(len, test)) == 17_499
  for client, (own, held_out) in enumerate(zip(train, test)):
    at, given = np.transpose(own + held_out)
    assert len(np.unique(at)) == len(at)
    assert set(given) == {client % 10, (client + 1) % 10}
    assert (labels[at] != given).sum() <= 1
