"""The page of partitions counts what a loop counts."""

import re

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import sources, split
from moon_jax.results import data_page
from moon_jax.results.page import Figure, Page
from support import page_checks

CONFIGS = [Config(dataset='digits', partition=f'dirichlet(beta={beta})',
                  seed=seed, algorithm=algorithm, num_clients=5)
           for beta in (.3, 5) for seed in range(3)
           for algorithm in ('fedavg', 'moon')]


def numbers(text):
  return [float(x.replace(',', '')) for x in re.findall(r'[\d,.]+', text)]


def rows_of(parts, title):
  """Returns the rows of the table of a section."""
  parts = parts[parts.index(f'## {title}'):]
  table = next(part for part in parts if '\n| ---' in part)
  return [line.strip('| ').split(' | ')
          for line in table.splitlines() if line.startswith('|')][2:]


@pytest.fixture(scope='module')
def parts():
  return data_page.sections(CONFIGS)


def test_sizes_and_classes_are_those_of_a_loop(parts):
  dataset = sources.load_dataset('digits')
  rows = rows_of(parts, 'Sizes of the clients')
  assert len(rows) == 2  # methods share splits, and so do seeds
  for beta, row in zip((.3, 5), rows):
    counts = []
    for seed in range(3):
      config = Config(
          dataset='digits', partition=f'dirichlet(beta={beta})', seed=seed,
          num_clients=5)
      for client in split.make(config, dataset).clients:
        labels = dataset.train_labels[client].tolist()
        counts.append([labels.count(k) for k in range(10)])
    lengths = [sum(client) for client in counts]
    assert sum(lengths) == 3 * len(dataset.train_labels)
    classes = [sum(count > 0 for count in client) for client in counts]
    std = np.mean([np.std(lengths[5 * s:5 * s + 5]) for s in range(3)])
    assert row[:3] == ['digits', f'dirichlet, beta {beta}, 5 clients', '3']
    assert numbers(row[3]) == pytest.approx([np.mean(lengths), std], abs=.51)
    assert numbers(row[-2]) == [min(lengths), max(lengths)]
    assert numbers(row[-1]) == pytest.approx(
        [np.mean(classes), min(classes), max(classes)], abs=.051)


def test_data_sets_and_heat_maps(parts):
  assert rows_of(parts, 'Data sets') == [
      ['digits', '1,438', '359', '10', '32 x 32 x 1']]
  figures = [part for part in parts if isinstance(part, Figure)]
  assert [figure.name for figure in figures] == ['partition-1', 'partition-2']
  for figure in figures:
    assert figure.svg.startswith('<svg') and '<image' not in figure.svg
    assert 'dirichlet' in figure.alt and 'seed 0' in figure.alt
  assert not page_checks.errors(Page('Data', '', parts).html())


def test_published_sizes_are_beside_the_same_split_only():
  labels = [data_page.label(Config(dataset='cifar10', **change)) for change in (
      {'algorithm': 'fedavg'}, {'partition': 'dirichlet(beta=0.1)'},
      {'num_clients': 5}, {'partition': 'iid'}, {'validation_fraction': .1},
      {'labels': 'noise(rate=0.1)'})]
  assert [('cifar10', label) in data_page.PUBLISHED for label in labels] == [
      True] + 5 * [False]
  assert labels[3] == 'iid, 10 clients'
  assert labels[5] == 'dirichlet, beta 0.5, labels noise(rate=0.1), 10 clients'


def test_a_data_set_that_cannot_be_loaded_is_named(tmp_path):
  missing = Config(dataset='tiny_imagenet', data_dir=str(tmp_path / 'no'))
  sections = data_page.sections([*CONFIGS[:1], missing])
  assert sections[1].startswith(
      'tiny_imagenet is missing: data_dir must name a directory')
  assert sum(isinstance(part, Figure) for part in sections) == 1
  assert len(data_page.sections([missing])) == 2
