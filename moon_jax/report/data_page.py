"""The page of data sets and partitions, which needs no training.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021,
https://arxiv.org/abs/2103.16257, publish the mean and the standard deviation of
the clients' sizes for Dirichlet 0.5 and 10 clients.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from moon_jax.algorithms import unused
from moon_jax.config import Config
from moon_jax.config import flags_with
from moon_jax.data import clients as clients_lib
from moon_jax.data import sources
from moon_jax.data import split
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError
from moon_jax.results import figures
from moon_jax.results import page
from moon_jax.results.page import Figure
from moon_jax.sweep import values
from moon_jax.training import heatmap

# Data set -> mean and standard deviation of the examples of a client.
PUBLISHED = {'cifar10': (5000, 1165), 'cifar100': (5000, 181),
             'tiny_imagenet': (10_000, 99)}
_PUBLISHED_SPLIT = {'partition': 'dirichlet', 'beta': .5, 'num_clients': 10}
_HEIGHT = 3.4  # inches of a heat map
_OF_ALL = ('validation_fraction', 'client_test_fraction', 'train_examples')


class Partition(NamedTuple):
  """The splits of one setting over seeds."""

  dataset: str
  label: str  # such as "dirichlet, beta 0.5, 10 clients"
  published: tuple[float, float] | None  # mean and std of the clients' sizes
  counts: tuple[np.ndarray, ...]  # for each seed int [C, K]
  seeds: tuple[int, ...]
  class_names: tuple[str, ...]


def sections(configs: Sequence[Config]) -> list[str | Figure]:
  """Returns statistics of data sets, sizes of clients and heat maps.

  Settings that change no split, such as the method, are ignored. A data set
  that cannot be loaded is left out, and a paragraph gives the reason.

  Args:
    configs: configurations of runs, which need not have been trained.

  Raises:
    UserError: if a data set cannot be partitioned as configured.
  """
  datasets, errors = _load(configs)
  parts = partitions([c for c in configs if c.dataset in datasets], datasets)
  missing = [page.text(f'{name} is missing: {error}')
             for name, error in errors.items()]
  return [
      '## Data sets', *missing, _dataset_table(datasets),
      '## Sizes of the clients', _size_table(parts),
      'Examples are the mean and the population standard deviation over the '
      'clients of a split, averaged over the splits, which differ in their '
      'seed. Ranges are over the clients of all splits. Classes are those of '
      'which a client has an example.',
      '## Partitions', *(_heatmap(i, partition)
                         for i, partition in enumerate(parts, 1))]


def partitions(configs: Sequence[Config],
               datasets: dict[str, Dataset]) -> list[Partition]:
  """Returns the splits of the configurations, grouped over seeds."""
  groups: dict[tuple, list[Config]] = {}
  for config in configs:
    groups.setdefault(_key(config), []).append(config)
  return [_partition(group, datasets[group[0].dataset])
          for group in groups.values()]


def _partition(configs, dataset):
  by_seed = {config.split_seed(): config for config in configs}
  first = configs[0]
  is_published = all(getattr(first, name) == value
                     for name, value in _PUBLISHED_SPLIT.items()) and not any(
                         getattr(first, name, 0) for name in _OF_ALL)
  return Partition(
      first.dataset, _label(first),
      PUBLISHED.get(first.dataset) if is_published else None,
      tuple(_counts(config, dataset) for config in by_seed.values()),
      tuple(by_seed), tuple(dataset.class_names))


def _counts(config, dataset):
  """Returns the examples per client and class, int [C, K]."""
  parts = split.make(config, dataset)
  labels = (dataset.train_labels if parts.train_labels is None
            else parts.train_labels)
  return clients_lib.class_counts(labels, parts.clients, dataset.num_classes)


def _load(configs):
  """Returns data sets by name, and errors of those that cannot be loaded."""
  datasets, errors = {}, {}
  for name, data_dir in dict.fromkeys(
      (config.dataset, config.data_dir) for config in configs):
    try:
      datasets[name] = sources.load(name, data_dir)
    except UserError as error:
      errors[name] = error
  return datasets, errors


def _fields(config):
  """Returns the settings that decide the split, without the seeds, by name."""
  names = {*flags_with(varies='split'), *_OF_ALL, 'num_clients', 'label_noise',
           'label_noise_form', 'concept_shift'} - {'seed', 'partition_seed'}
  without_effect = unused.unused(config)
  return {field.name: getattr(config, field.name)
          for field in dataclasses.fields(config)
          if field.name in names and field.name not in without_effect}


def _key(config):
  return config.dataset, *_fields(config).items()


def _label(config):
  """Returns the partition, the number of clients and what is not a default."""
  fields = _fields(config)
  words = [str(fields.pop('partition'))]
  num_clients = fields.pop('num_clients')
  words += [f'{name} {values.show(value)}' for name, value in fields.items()
            if name == 'beta' or value != getattr(Config, name)]
  return ', '.join([*words, f'{num_clients} clients'])


def _dataset_table(datasets):
  return page.table(
      'The data sets', ('data set', 'training examples', 'test examples',
                        'classes', 'shape of an example'),
      [(name, f'{len(data.train_labels):,}', f'{len(data.test_labels):,}',
        f'{data.num_classes}',
        ' x '.join(map(str, data.train_inputs.shape[1:])))
       for name, data in datasets.items()])


def _size_table(parts):
  return page.table(
      'Training examples and classes of a client',
      ('data set', 'partition', 'splits', 'examples', 'published', 'range',
       'classes'), list(map(_size_row, parts)))


def _size_row(partition):
  sizes_SC = [counts_CK.sum(1) for counts_CK in partition.counts]
  classes_SC = [(counts_CK > 0).sum(1) for counts_CK in partition.counts]
  std = np.mean([np.std(sizes_C) for sizes_C in sizes_SC])
  published = partition.published
  return (
      partition.dataset, partition.label, f'{len(partition.seeds)}',
      f'{np.mean(sizes_SC):,.0f} ± {std:,.0f}',
      f'{published[0]:,} ± {published[1]:,}' if published else '',
      f'{np.min(sizes_SC):,} to {np.max(sizes_SC):,}',
      f'{np.mean(classes_SC):.1f} ({np.min(classes_SC)} to '
      f'{np.max(classes_SC)})')


def _heatmap(i, partition):
  """Returns the heat map of the first seed."""
  counts_CK = partition.counts[0]
  where = f'{partition.dataset}, {partition.label}, seed {partition.seeds[0]}'
  sizes = counts_CK.sum(1)
  svg = figures.svg(functools.partial(
      heatmap.fill, counts_CK=counts_CK, class_names=partition.class_names),
                   _HEIGHT, f'partition-{i}')
  return Figure(
      f'partition-{i}', svg,
      f'Heat map of {where}: training examples of each client and class. '
      f'Clients have {sizes.min():,} to {sizes.max():,} examples, and a client '
      f'has at most {counts_CK.max():,} of one class.',
      f'{where}. Cells without examples are white.')
