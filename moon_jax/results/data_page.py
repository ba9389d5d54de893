"""The page of data sets and partitions, which needs no training.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021,
https://arxiv.org/abs/2103.16257, publish the mean and the standard deviation of
the clients' sizes for Dirichlet 0.5 and 10 clients.
"""

from collections.abc import Sequence
import functools

import numpy as np

from moon_jax.config import Config, flags_with
from moon_jax.data import clients as clients_lib
from moon_jax.data import sources, split
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError
from moon_jax.results import figures, page, pictures
from moon_jax.results.page import Figure
from moon_jax.runs import values

# Published mean and standard deviation of the examples of a client.
PUBLISHED = {
    ('cifar10', 'dirichlet, beta 0.5, 10 clients'): '5,000 ± 1,165',
    ('cifar100', 'dirichlet, beta 0.5, 10 clients'): '5,000 ± 181',
    ('tiny_imagenet', 'dirichlet, beta 0.5, 10 clients'): '10,000 ± 99'}
_HEIGHT = 3.4  # inches of a heat map


def sections(configs: Sequence[Config]) -> list[str | Figure]:
  """Returns statistics of data sets, sizes of clients and heat maps of runs.

  Settings that change no split, such as the method, are ignored. A data set
  that cannot be loaded is left out, and a paragraph gives the reason.
  """
  datasets: dict[str, Dataset] = {}
  parts: list[str | Figure] = ['## Data sets']
  for name, data_dir in dict.fromkeys((c.dataset, c.data_dir) for c in configs):
    try:
      datasets[name] = sources.load_dataset(name, data_dir)
    except UserError as error:
      parts.append(f'{name} is missing: {error}')
  if not datasets:
    return parts
  grouped: dict[tuple[str, str], dict[int, Config]] = {}
  for config in configs:
    if config.dataset in datasets:
      grouped.setdefault((config.dataset, label(config)), {})[
          config.split_seed()] = config
  counts = {key: [_counts(config, datasets[config.dataset])
                  for config in by_seed.values()]
            for key, by_seed in grouped.items()}
  return [
      *parts, page.table('The data sets', [{
          'data set': name, 'training examples': f'{len(data.train_labels):,}',
          'test examples': f'{len(data.test_labels):,}',
          'classes': f'{data.num_classes}',
          'shape of an example': ' x '.join(
              map(str, data.train_inputs.shape[1:]))}
          for name, data in datasets.items()]),
      '## Sizes of the clients', page.table(
          'Training examples and classes of a client',
          [_size_row(*key, found) for key, found in counts.items()]),
      'Examples are the mean and the population standard deviation over the '
      'clients of a split, averaged over the splits, which differ in their '
      'seed. Ranges are over the clients of all splits. Classes are those of '
      'which a client has an example.',
      '## Partitions', *(
          _heatmap(i, f'{", ".join(key)}, seed {next(iter(by_seed))}',
                   counts[key][0], datasets[key[0]].class_names)
          for i, (key, by_seed) in enumerate(grouped.items(), 1))]


def label(config: Config) -> str:
  """Returns the partition, the number of clients and what is not a default.

  Configurations of a data set with the same label have the same split, if they
  have the same seed.
  """
  names = {*flags_with(varies='split'), *flags_with(varies='labels')} - {
      'seed', 'partition_seed', 'partition'}
  defaults = Config().to_dict()
  shown = [f'{name} {values.show(value)}'
           for name, value in config.to_dict().items() if name in names
           and value != defaults[name]]
  arguments = config.args('partition').items()
  return ', '.join([
      config.partition.name,
      *(f'{name} {values.show(value)}' for name, value in arguments), *shown,
      f'{config.num_clients} clients'])


def _counts(config, dataset):
  """Returns the examples per client and class, int [C, K]."""
  parts = split.make(config, dataset)
  labels = (dataset.train_labels if parts.train_labels is None
            else parts.train_labels)
  return clients_lib.class_counts(labels, parts.clients, dataset.num_classes)


def _size_row(dataset, partition, counts):
  sizes_SC, classes_SC = np.sum(counts, 2), np.count_nonzero(counts, 2)
  return {
      'data set': dataset, 'partition': partition, 'splits': f'{len(counts)}',
      'examples': f'{sizes_SC.mean():,.0f} ± {sizes_SC.std(1).mean():,.0f}',
      'published': PUBLISHED.get((dataset, partition), ''),
      'range': f'{sizes_SC.min():,} to {sizes_SC.max():,}',
      'classes': f'{classes_SC.mean():.1f} ({classes_SC.min()} to '
                 f'{classes_SC.max()})'}


def _heatmap(i, where, counts_CK, class_names):
  sizes = counts_CK.sum(1)
  name = f'partition-{i}'
  svg = figures.svg(functools.partial(
      pictures.heat_map, counts_CK=counts_CK, class_names=class_names),
                    _HEIGHT, name)
  return Figure(
      name, svg,
      f'Heat map of {where}: training examples of each client and class. '
      f'Clients have {sizes.min():,} to {sizes.max():,} examples, and a client '
      f'has at most {counts_CK.max():,} of one class.',
      f'{where}. Cells without examples are white.')
