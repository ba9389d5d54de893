"""Synthetic data of a million clients, to measure runs of that size.

Each client has 10 examples of 8 features. A class is the largest of four linear
scores, the same for all clients; the features of a client have a mean of their
own. `--data_dir` is the number of clients, a million if it is empty.
"""

import numpy as np

_EXAMPLES, _FEATURES, _CLASSES, _NUM_TEST = 10, 8, 4, 2000


def million(data_dir):
  """Returns the arrays of the data set."""
  num_clients = int(data_dir or 10**6)
  rng = np.random.default_rng(0)
  scores = rng.normal(size=(_FEATURES, _CLASSES)).astype(np.float32)

  def draw(count, per_client):
    means = rng.standard_normal((count, 1, _FEATURES), np.float32)
    x = rng.standard_normal((count, per_client, _FEATURES), np.float32)
    x += means
    x = x.reshape(-1, _FEATURES)
    return x, (x @ scores).argmax(1)

  x_train, y_train = draw(num_clients, _EXAMPLES)
  x_test, y_test = draw(_NUM_TEST, 1)
  return {
      'x_train': x_train, 'y_train': y_train, 'x_test': x_test,
      'y_test': y_test, 'class_names': [f'class {k}' for k in range(_CLASSES)],
      'client_train': np.repeat(np.arange(num_clients), _EXAMPLES)}
