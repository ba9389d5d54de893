"""Each method against the update of its paper as we know it, in plain NumPy.

Rows name the algorithm, and the plain reference: a function of the cohorts that
returns `plain.Trained`. Golden values (`golden/NAME.npz`) are those of the code
that the authors of a paper released, on the same weights and batches;
golden/README.md lists them.
"""

import json
import pathlib
import re

import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import Part, parts
from moon_jax.config.methods import METHODS
from support import ROOT
from support.papers import (
  features,
  losses_of_papers,
  mixing,
  optimisation,
  parts_of_networks,
  plain,
  slices,
  two_models,
)

GOLDEN = pathlib.Path(__file__).parent / 'golden'
FAMILIES = (features, losses_of_papers, optimisation, parts_of_networks,
            two_models, mixing, slices)

# Name: the algorithm, its reference, and arguments of `plain.federation`.
ROWS = {
    'fedavg': (mj.fedavg(), plain.with_loss(
        lambda w, x, y, *_: plain.cross_entropy(w, x, y)), {}),
    'solo': (mj.solo(), plain.method(
        lambda w, own, c, t: (plain.sgd(own, plain.cross_entropy, c),) * 3,
        server=lambda w, mean: w), {}),
    **{name: row for family in FAMILIES for name, row in family.ROWS.items()}}

# Name of a file of golden values: the algorithm, and arguments of
# `plain.federation`.
GOLDEN_ROWS = {
    name: row for family in FAMILIES
    for name, row in family.GOLDEN_ROWS.items()}

# Methods without a row, and the tests that compare them.
ELSEWHERE = {
    'fedbn': 'tests/algorithms/parts_test.py',
    'fednova': 'tests/algorithms/algorithms_test.py',
    'flora': 'tests/papers/low_rank_test.py',
    'fedsalora': 'tests/papers/low_rank_test.py',
    **dict.fromkeys(('fedprox', 'scaffold', 'moon', 'moon_l2'),
                    'tests/golden_test.py'),
    'centralized': 'tests/papers/papers_test.py'}

# Two methods of each family run by default, and CI runs all of them.
BY_DEFAULT = {'fedavg', 'solo'}.union(*(
    [*family.ROWS][:2] for family in FAMILIES))


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.long] * (name not in BY_DEFAULT))
    for name in ROWS])
def test_a_method_equals_its_paper(name):
  """Global models, those that clients use, and metrics of each step."""
  algorithm, reference, options = ROWS[name]
  plain.recorded.clear()
  expected = reference(plain.SOME)
  if not algorithm.penalties:  # without them a round does not record it
    for metrics in plain.recorded.values():
      metrics.pop('cross_entropy', None)
  plain.assert_equal(plain.simulated(algorithm, plain.SOME, **options),
                     expected._replace(metrics=dict(plain.recorded)))


def test_each_method_is_compared_in_the_test_that_its_page_names():
  with_row = {name if name in METHODS else re.split('[-_]', name)[0]
              for name in ROWS}
  assert sorted([*with_row, *ELSEWHERE]) == sorted(METHODS)
  page = (ROOT / 'docs/methods.md').read_text(encoding='utf-8')
  _, _, paragraph = page.partition('Tests compare most methods')
  sentences = paragraph.partition('\n\n')[0].split('. ')
  for name, path in ELSEWHERE.items():
    assert name == 'centralized' or any(
        f'(../{path})' in sentence
        and re.search(rf'\b{METHODS[name].title}\b', sentence)
        for sentence in sentences), name


@pytest.mark.parametrize('name', ['heterofl', 'fedrolex', 'fjord'])
def test_ten_rounds_of_slices_equal_those_of_small_networks(name):
  algorithm, reference, options = ROWS[name]
  cohorts = (*plain.SOME, *plain.SOME[::-1], (3,), (1, 2), (0, 3), (2, 1, 0))
  plain.assert_equal(plain.simulated(algorithm, cohorts, **options),
                     reference(cohorts))


def test_centralized_training_equals_sgd():
  """Rounds of the one client go on with its weights."""
  algorithm = parts.function_of('algorithm', Part('centralized'))()
  w = plain.INITIAL
  for found in plain.simulated(algorithm, ((1,),) * 2).rounds:
    w = plain.sgd(w, plain.cross_entropy, 1)
    plain.assert_equal(plain.Trained([found]), plain.Trained([w]))


@pytest.mark.long
@pytest.mark.parametrize('name', GOLDEN_ROWS)
def test_a_method_equals_its_released_code(name):
  algorithm, options = GOLDEN_ROWS[name]
  plain.assert_equal(plain.simulated(
      algorithm, plain.ALL, clients=plain.GOLDEN_CLIENTS, **options),
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
