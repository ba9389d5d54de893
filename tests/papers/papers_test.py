"""Each method against the update of its paper, in plain NumPy.

Rows name the algorithm, and the plain reference: a function of the cohorts that
returns `plain.Trained`. Golden values (`golden/NAME.npz`) are those of the code
that the authors of a paper released, on the same weights and batches;
golden/README.md lists them.
"""

import json
import pathlib

import numpy as np
import pytest

import features
import losses_of_papers
import mixing
import moon_jax as mj
import optimisation
import parts_of_networks
import plain
import two_models

GOLDEN = pathlib.Path(__file__).parent / 'golden'


def fedavg(cohorts):
  w, trained = plain.INITIAL, plain.Trained([], {})
  for cohort in cohorts:
    local = {c: plain.sgd(w, plain.cross_entropy, c) for c in cohort}
    w = plain.mean(local)
    trained.rounds.append(w)
    trained.personal.update(local)
  return trained


# Name: the algorithm, its reference, and arguments of `plain.Simulated`.
ROWS = {
    'fedavg': (mj.fedavg(), fedavg, {}),
    **features.ROWS,
    **losses_of_papers.ROWS,
    **optimisation.ROWS,
    **parts_of_networks.ROWS,
    **two_models.ROWS,
    **mixing.ROWS,
}

# Name of a file of golden values: the algorithm, and arguments of
# `plain.Simulated`.
GOLDEN_ROWS = {
    **features.GOLDEN_ROWS,
    **losses_of_papers.GOLDEN_ROWS,
    **optimisation.GOLDEN_ROWS,
    **parts_of_networks.GOLDEN_ROWS,
    **two_models.GOLDEN_ROWS,
    **mixing.GOLDEN_ROWS,
}

# One method for each kind of state or function runs by default.
DEFAULT = ('fedpac', 'fedsam')


@pytest.mark.parametrize('name', [
    # CI runs methods that are compared with released code, and variants.
    pytest.param(name, marks=pytest.mark.long if (
        '-' in name or name in GOLDEN_ROWS and name not in DEFAULT) else [])
    for name in ROWS])
def test_a_method_equals_its_paper(name):
  algorithm, reference, options = ROWS[name]
  plain.assert_equal(
      plain.Simulated(algorithm, **options).run(plain.SOME),
      reference(plain.SOME))


@pytest.mark.long
@pytest.mark.parametrize('name', GOLDEN_ROWS)
def test_a_method_equals_its_released_code(name):
  algorithm, options = GOLDEN_ROWS[name]
  plain.assert_equal(
      plain.Simulated(algorithm, **options).run(plain.ALL), golden(name)[1])


def test_golden_values_name_their_source_and_are_compared():
  names = {path.stem for path in GOLDEN.glob('*.npz')}
  assert names == set(GOLDEN_ROWS)
  for name in names:
    meta, trained = golden(name)
    assert {'repo', 'commit', 'files'} <= meta.keys() and trained.rounds


def golden(name):
  """Returns the source of the released code, and its results."""
  file = np.load(GOLDEN / f'{name}.npz')
  models = {}
  for key in file.files:
    at, _, letters = key.rpartition('_')
    if at:
      models.setdefault(at, {})[letters] = file[key]
  return json.loads(str(file['meta'])), plain.Trained(
      [models[f'round{t}'] for t in range(3) if f'round{t}' in models],
      {c: models[f'personal_{c}'] for c in range(plain.NUM_CLIENTS)
       if f'personal_{c}' in models})
