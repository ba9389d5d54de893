"""Projections of test examples under the model of a finished run."""

import dataclasses

import numpy as np
import pytest
from sklearn import manifold

from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.results import projections
from moon_jax.results.page import Page
from moon_jax.runs import run
from support import page_checks

CONFIG = Config(
    dataset='digits', model='mlp(projection_dim=16)', num_clients=4,
    num_rounds=1, algorithm='fedavg', local_epochs=2, learning_rate=.05,
    partition='dirichlet(beta=5)', batch_size=16, checkpoint_every=0)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp('run')
  run.run(dataclasses.replace(CONFIG, workdir=str(path)))
  return path


def test_neighbours_vote_as_in_a_loop():
  random = np.random.RandomState(0)
  labels = random.randint(0, 4, 120)
  z_NF = random.normal(size=(120, 5)) + 2 * np.eye(4, 5)[labels]
  correct = 0
  for i, z in enumerate(z_NF):
    others = [j for j in range(120) if j != i]
    cosine = {j: z @ z_NF[j] / np.linalg.norm(z) / np.linalg.norm(z_NF[j])
              for j in others}
    nearest = sorted(others, key=lambda j: -cosine[j])[:10]
    votes = [sum(labels[j] == k for j in nearest) for k in range(4)]
    correct += votes.index(max(votes)) == labels[i]
  expected = correct / 120
  assert .5 < expected < 1
  assert projections.neighbour_accuracy(z_NF, labels) == pytest.approx(expected)
  scaled = z_NF * random.uniform(1, 9, (120, 1))  # changes no cosine
  assert projections.neighbour_accuracy(scaled, labels) == pytest.approx(
      expected)


def test_examples_and_projections_are_those_of_the_run(finished):
  found = projections.read(finished, '', 200)
  assert found.z_NF.shape == (200, 16)
  subset = sources.load_dataset('digits').with_test_examples(200)
  np.testing.assert_array_equal(found.labels, subset.test_labels)


def test_a_section_draws_runs_one_beside_the_other(finished, monkeypatch):
  monkeypatch.setattr(
      manifold.TSNE, 'fit_transform', lambda self, z_NF: z_NF[:, :2])
  parts = projections.section({'one': finished, 'two': finished}, '', 150)
  _, figure, numbers, _ = parts
  assert figure.svg.startswith('<svg')
  *_, header, _, row, again = numbers.splitlines()
  assert header == '| method | accuracy of 10 neighbours, % | silhouette |'
  assert row.startswith('| one | ')
  assert row.split(' | ')[1:] == again.split(' | ')[1:]
  assert float(row.split(' | ')[1]) > 50  # chance is 10
  assert not page_checks.errors(Page('z', '', parts).html())
  assert row.split(' | ')[1] in figure.alt


def test_at_most_ten_classes_are_drawn(finished, monkeypatch):
  """The first of them; of digits, which has as many, here the first five."""
  monkeypatch.setattr(projections, '_MAX_CLASSES', 5)
  assert np.unique(projections.read(finished, '', 100).labels).tolist() == [
      0, 1, 2, 3, 4]


@pytest.mark.parametrize('count', [99, 360])
def test_the_number_of_examples_is_checked(count, finished):
  with pytest.raises(UserError, match=f'must be 100 to 359.*got {count}'):
    projections.read(finished, '', count)


def test_a_directory_without_a_model_is_an_error(tmp_path):
  with pytest.raises(UserError, match='must be a complete model'):
    projections.section({'MOON': tmp_path})
