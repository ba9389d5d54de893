"""Measures the errors of one precision against the float64 golden vectors."""

import pathlib
from typing import Any

import numpy as np


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Returns the errors that benchmarks/precision.py measures.

  The task has "golden", the directory of the golden vectors, and "choice", a
  dict with the dtype or the precision.
  """
  from benchmarks import precision

  golden = pathlib.Path(task['golden'])
  inputs = dict(np.load(golden / 'simple_cnn.npz'))
  figures = dict(np.load(golden / 'resnet.npz'))
  return {
      'choice': task['choice'],
      'round': precision.round_errors(inputs, **task['choice']),
      'gradients': precision.gradient_errors(figures, inputs, **task['choice'])}
