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
FAMILIES = (features, losses_of_papers, optimisation, parts_of_networks,
            two_models, mixing)

# Name: the algorithm, its reference, and arguments of `plain.federation`.
ROWS = {
    'fedavg': (mj.fedavg(), plain.with_loss(
        lambda w, x, y, *_: plain.cross_entropy(w, x, y)), {}),
    **{name: row for family in FAMILIES for name, row in family.ROWS.items()}}

# Name of a file of golden values: the algorithm, and arguments of
# `plain.federation`.
GOLDEN_ROWS = {
    name: row for family in FAMILIES
    for name, row in family.GOLDEN_ROWS.items()}

# One method for each kind of state or function runs by default.
DEFAULT = ('fedpac', 'fedsam')


@pytest.mark.parametrize('name', [
    # CI runs methods that are compared with released code, and variants.
    pytest.param(name, marks=pytest.mark.long if not name.isalnum() or (
        name in GOLDEN_ROWS and name not in DEFAULT) else [])
    for name in ROWS])
def test_a_method_equals_its_paper(name):
  algorithm, reference, options = ROWS[name]
  plain.assert_equal(plain.simulated(algorithm, plain.SOME, **options),
                     reference(plain.SOME))


@pytest.mark.long
@pytest.mark.parametrize('name', GOLDEN_ROWS)
def test_a_method_equals_its_released_code(name):
  algorithm, options = GOLDEN_ROWS[name]
  plain.assert_equal(plain.simulated(algorithm, plain.ALL, **options),
                     golden(name)[1])


@pytest.mark.long
def test_apfl_keeps_its_weight_between_0_and_1():
  federated = plain.federation(mj.apfl(.99, adaptive=True), learning_rate=5.)
  alpha = .99 + federated.train(plain.ALL).state.clients[1]
  np.testing.assert_allclose(alpha, np.clip(alpha, 0, 1), atol=1e-6)
  assert (abs(alpha - 1) < 1e-6).any()


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
