"""Builds federations from configurations; no other module does."""

import dataclasses
import math

import numpy as np

from moon_jax import errors, learning_rates, models, optimizers
from moon_jax.config import Config, Part
from moon_jax.config import parts as parts_lib
from moon_jax.config.kinds import DATA_ATTACKS
from moon_jax.data import (
  attackers,
  mapped,
  partition,
  sources,
  split,
)
from moon_jax.data import clients as clients_lib
from moon_jax.data import clock as clock_lib
from moon_jax.data import cohort as cohort_lib
from moon_jax.data import rounds as rounds_lib
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import processes
from moon_jax.errors import require, setting, UserError
from moon_jax.methods import registry
from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.simulation import (
  checks,
  federation_checks,
  initial_state,
  metric_functions,
  round_spec,
)
from moon_jax.simulation.federation import Federation, SETTINGS


def federation(config: Config, dataset: Dataset | None = None,
               clients: list[np.ndarray] | None = None,
               cohorts: list[list[int]] | None = None,
               init_variables: Variables | None = None) -> Federation:
  """Returns the federation that `config` describes.

  Args:
    config: the configuration.
    dataset: the data; None loads what the configuration names.
    clients: for each client the indices of its training examples; None
      partitions the data set, changes labels and holds out examples, as
      configured.
    cohorts: for each round the clients that take part; None samples them as
      configured. They may list more rounds than the run trains, so that it
      can be extended; memory is planned for the largest listed cohort.
    init_variables: the initial global model; None draws it from the seed. This
      function does not read --init_from: `runs.prepare` does.

  Raises:
    UserError: naming the flag, its value and a remedy, if the configuration
      cannot be run.
  """
  return from_valid(
      checks.validate(config), dataset, clients, cohorts, init_variables)


def from_valid(config: Config, dataset: Dataset | None = None,
               clients: list[np.ndarray] | None = None,
               cohorts: list[list[int]] | None = None,
               init_variables: Variables | None = None) -> Federation:
  """`federation`, for a configuration that `checks.validate` returned."""
  if dataset is None:
    dataset = sources.load_dataset(config.dataset, config.data_dir)
  federation_checks.check_dataset(
      dataset, setting('dataset', config.dataset), config.eval_examples)
  dataset = dataset.with_int32_labels()
  parts = _split(config, dataset, clients)
  dataset = _as_seen(config, parts, dataset)
  test_sets = {}
  if trigger := registry.backdoor_of(config):
    dataset = trigger.poisoned(dataset, parts.clients, attackers.configured(
        config), config.split_seed())
    test_sets['backdoor'] = trigger.test_set(
        dataset.with_test_examples(config.eval_examples))
  cohorts, select = _cohorts(config, cohorts), registry.selection_of(config)
  rounds = rounds_lib.listed(cohorts) if select is None else (
      rounds_lib.selected(select, max(map(len, cohorts))))
  network = model(config, dataset)
  algorithm = registry.make(
      dataclasses.replace(config, rounds=Part('synchronous'))
      if config.is_asynchronous() else config, max(map(len, cohorts)))
  require(config.privacy.name != 'example'
          or clients_lib.are_disjoint(parts.clients),  # as epsilon assumes
          'privacy=example', 'needs clients that share no examples',
          setting('partition', config.partition), 'Give another one')
  clock = registry.clock_of(config)
  from_file = init_variables if config.init_from else None
  if clock or from_file is not None:
    traced = round_spec.trace(
        dataset, network, algorithm, optimizers.resolve(config.optimizer))
  if from_file is not None:
    init_variables = initial_state.checked(
        from_file, traced.model, setting('init_from', config.init_from))
  if clock:
    rounds = _timed(config, clock, clients_lib.sizes(parts.clients), cohorts,
                    select, algorithm, traced)
    algorithm = registry.make(config, rounds.cohort_size)
  made = Federation(**{
      **{name: getattr(config, name) for name in SETTINGS},
      'optimizer': config.optimizer, 'topology': registry.topology_of(config),
      'data': dataset, 'clients': parts.clients, 'model': network,
      'groups': _groups(config), 'augmentation': parts_lib.make(
          'augmentation', config.augmentation, dataset=dataset),
      'algorithm': algorithm, 'rounds': _with_dropout(config, rounds),
      'learning_rate': learning_rates.make(config),
      'planned_rounds': config.num_rounds, 'init_variables': init_variables,
      'input_noise_std': _input_noise_std(config, parts, dataset),
      'validation': parts.validation, 'test_sets': test_sets,
      'metrics': metric_functions.from_flag(config.metrics),
      **_evaluation_of_clients(config, parts),
      'keep_local_models': config.save_local_models,
      # Examples that stay in a file are read round by round.
      'shard_data': (
          config.shard_data or mapped.is_mapped(dataset.train_inputs))})
  if rounds.needs_history:  # errors in a user's function show at once
    processes.run_on_first_process(lambda: made.first_cohorts(1))
  return made


def _as_seen(config, parts, dataset):
  """Returns the data set with labels and images as the clients see them."""
  if parts.train_labels is not None:
    dataset = dataset._replace(train_labels=parts.train_labels)
  if config.partition.name != 'rotated':
    return dataset
  indices = [parts.clients]
  if parts.client_tests is not None:
    indices.append(parts.client_tests.indices)
  return dataset._replace(train_inputs=partition.turned(
      dataset.train_inputs, [np.concatenate(own) for own in zip(*indices)],
      config.args('partition')['groups']))


def _groups(config):
  """Returns the group of each client, or None if they have none."""
  counts = [config.args(kind)['groups'] for kind, name in (
      ('labels', 'shift'), ('partition', 'rotated'))
            if getattr(config, kind).name == name]
  return np.arange(config.num_clients) % math.lcm(*counts) if counts else None


def _input_noise_std(config, parts, dataset):
  """Returns the deviation of the noise on each example, or None."""
  if config.partition.name != 'feature_noise':
    return None
  return partition.noise_std(
      parts.clients, config.args('partition')['noise_std'],
      len(dataset.train_labels))


def _evaluation_of_clients(config, parts):
  """Returns the fields of evaluations of clients."""
  if not config.client_eval_every:
    return {}
  return {'evaluate_clients': config.client_eval != 'all',
          'evaluate_all': config.client_eval != 'cohort',
          'new_clients': parts.new_clients, 'client_tests': parts.client_tests}


def _with_dropout(config, rounds):
  """Returns rounds in which clients fail as configured."""
  if config.is_asynchronous():
    return rounds
  options = parts_lib.make('rounds', config.rounds)
  return rounds_lib.with_dropout(
      rounds, options.dropout_rate, options.dropout_stage)


def _split(config, dataset, clients):
  """Returns the split of the configuration, or that of clients as given."""
  if clients is None:
    parts = split.make(config, dataset)
  else:
    _check_keeps_split(config)
    parts = split.Split(clients)
  return parts._replace(clients=clients_lib.checked(
      parts.clients, len(dataset.train_labels), 'clients[{}]'))


def _cohorts(config, cohorts):
  """Returns the cohorts of the configuration, or those that are given."""
  if cohorts is None:
    return cohort_lib.make(config)
  if config.has_clock():
    raise UserError(
        '', 'a clock plans the cohorts of this configuration',
        'cohorts as an argument',
        'Use moon_jax.Federation with moon_jax.rounds.timed')
  require(not config.args('privacy').get('noise_multiplier')
          or config.cohort.name == 'file'
          or [[*map(int, clients)] for clients in cohorts] == cohort_lib.make(
              dataclasses.replace(config, num_rounds=len(cohorts))), '',
          'epsilon is computed for the cohorts that this configuration samples',
          'others as an argument', f'Give {setting("cohort")}=file(path=...), '
          'or use moon_jax.Federation')
  return cohorts


def _check_keeps_split(config):
  """Checks that the configuration does not change a split that is given."""
  changes_split = {name: getattr(config, name) for name in (
      'client_test_fraction', 'train_examples', 'validation_fraction')} | {
          'labels': config.labels.name != 'clean',
          'attack': config.attack.name in DATA_ATTACKS}
  for name, is_changed in changes_split.items():
    if is_changed:
      raise UserError(
          f'{name}={getattr(config, name)}', 'changes a split of this '
          'configuration', 'clients as an argument',
          'Use moon_jax.data.split.make, or moon_jax.Federation')


@errors.naming(cohorts='cohort', **{name: f'rounds.{name}' for name in (
    'buffer_size', 'concurrency', 'max_staleness', 'over_selection', 'tiers')})
def _timed(config, clock, sizes_C, cohorts, select, algorithm, traced):
  """Returns rounds that a clock plans, or measures if clients are selected.

  `traced` is of the `algorithm`, without staleness.
  """
  measure = lambda examples_C: clock.seconds(
      examples_C, *round_spec.wire_bytes(
          algorithm, traced, registry.topology_of(config), len(sizes_C)))
  seconds = measure(round_spec.local_examples(config, sizes_C))
  if select is not None:
    return rounds_lib.selected(
        select, max(map(len, cohorts)), seconds,
        None if clock.is_always_available() else clock)
  num_rounds = max(config.num_rounds, len(cohorts))
  is_listed = config.cohort.name == 'file'
  options = parts_lib.make('rounds', config.rounds)
  timeline = clock_lib.asynchronous(
      clock, seconds, options.concurrency, options.buffer_size, num_rounds,
      config.seed, options.max_staleness
  ) if config.is_asynchronous() else clock_lib.synchronous(
      clock, seconds, config.cohort_size(), num_rounds, config.seed,
      options.over_selection, options.deadline,
      cohorts if is_listed else None,
      (measure(np.zeros_like(sizes_C)), round_spec.local_steps(config, sizes_C)
       ) if options.partial_work else None,
      options.tiers, algorithm.min_received)
  # Cohorts of more rounds may be larger, unless a file lists them.
  return rounds_lib.timed(timeline._replace(
      cohort_size=0 if is_listed else config.cohort_size()))


def model(config: Config, dataset: Dataset) -> Model:
  """Returns the configured network for a data set."""
  return models.network(
      config.model, num_classes=dataset.num_classes,
      num_tokens=dataset.num_tokens, task=dataset.task_name)
