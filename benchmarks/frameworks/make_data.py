"""Writes mine.npz: scikit-learn's digits, split over 10 clients.

python -m benchmarks.frameworks.make_data mine.npz

x_train, x_test: features float32 [N, 64]; y_train, y_test: classes int64 [N];
client_train: the client of each training example, int64 [N]. Shares of a class
are drawn from a Dirichlet distribution with concentration 0.5.
"""

import sys

import numpy as np
from sklearn import datasets

NUM_CLIENTS = 10


def write(path) -> None:
  """Writes the arrays to `path`."""
  x, y = datasets.load_digits(return_X_y=True)
  x = (x / 16).astype(np.float32)
  is_test = np.arange(len(y)) % 5 == 4
  y_train = y[~is_test]
  client_train = np.zeros_like(y_train)
  rng = np.random.default_rng(0)
  for label in np.unique(y):
    shares = rng.dirichlet(np.full(NUM_CLIENTS, 0.5))
    is_label = y_train == label
    client_train[is_label] = rng.choice(
        NUM_CLIENTS, size=is_label.sum(), p=shares)
  np.savez(path, x_train=x[~is_test], y_train=y_train, x_test=x[is_test],
           y_test=y[is_test], client_train=client_train)


if __name__ == '__main__':
  write(sys.argv[1])
