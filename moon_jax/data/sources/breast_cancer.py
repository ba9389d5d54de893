"""Breast cancer, malignant or benign: a table bundled with scikit-learn.

569 examples of 30 features, the UCI "Breast Cancer Wisconsin (Diagnostic)" data
set (Wolberg, Mangasarian, Street and Street, 1993),
https://doi.org/10.24432/C5DW2B. 63% are benign.
"""

import numpy as np

from moon_jax.data.dataset import Dataset


def load(data_dir: str = '') -> Dataset:
  """Returns 456 training examples and every fifth, 113, as test examples."""
  del data_dir  # the table is bundled with scikit-learn
  from sklearn import datasets  # slow to import

  bunch = datasets.load_breast_cancer()
  features, labels = bunch.data.astype(np.float32), bunch.target
  is_test = np.arange(len(labels)) % 5 == 4
  return Dataset(
      name='breast_cancer',
      train_inputs=features[~is_test],
      train_labels=labels[~is_test].astype(np.int32),
      test_inputs=features[is_test],
      test_labels=labels[is_test].astype(np.int32),
      class_names=tuple(map(str, bunch.target_names)),
      mean=tuple(map(float, features[~is_test].mean(0))),
      std=tuple(map(float, features[~is_test].std(0))))
