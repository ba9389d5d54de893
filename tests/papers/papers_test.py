"""Each method against the update of its paper, in plain NumPy.

A row names the method as in `moon_jax.algorithms.registry`, and the plain
reference: a function of the cohorts that returns `plain.Trained`. Golden values
(`golden/NAME.npz`, see golden/README.md) are those of the code that the authors
of a paper released, on the same weights and batches.
"""

import json
import pathlib

import mixing
import numpy as np
import pytest

import moon_jax as mj
import plain

GOLDEN = sorted(pathlib.Path(__file__).parent.glob('golden/*.npz'))


def fedavg(cohorts):
  w, trained = plain.INITIAL, plain.Trained([], {})
  for cohort in cohorts:
    local = {c: plain.sgd(w, plain.cross_entropy, c) for c in cohort}
    w = plain.mean(local)
    trained.rounds.append(w)
    trained.personal.update(local)
  return trained


# Name of the method: the algorithm, its reference, and what differs from
# `plain.Simulated`.
ROWS = {
    'fedavg': (mj.fedavg(), fedavg, {}),
    **mixing.ROWS,
}


@pytest.mark.parametrize('name', ROWS)
def test_a_method_equals_its_paper(name):
  algorithm, reference, options = ROWS[name]
  simulated = plain.Simulated(algorithm, **options)
  plain.assert_equal(simulated.run(plain.SOME), reference(plain.SOME))


def golden(path):
  """Returns the released code's results."""
  file = np.load(path)
  models = {}
  for key in file.files:
    at, _, name = key.rpartition('_')
    if at:
      models.setdefault(at, {})[name] = file[key]
  return json.loads(str(file['meta'])), plain.Trained(
      [models[f'round{t}'] for t in range(3) if f'round{t}' in models],
      {c: models[f'personal_{c}'] for c in range(plain.NUM_CLIENTS)
       if f'personal_{c}' in models})
