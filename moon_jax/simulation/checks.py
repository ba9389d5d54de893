"""Validates configurations before anything compiles.

`moon_jax.config.limits` checks single settings, and `moon_jax.config.parts`
the arguments of a part. This module checks paths, and settings that do not fit
together. `moon_jax.simulation.federation_checks` checks federations.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from moon_jax import errors, optimizers, platforms
from moon_jax.algorithms import order
from moon_jax.config import (
  Config,
  DATASETS,
  FACTS,
  limits,
  LOGGERS,
  PARTS,
  parts,
  suggest,
)
from moon_jax.config.kinds import DATA_ATTACKS, ROBUST, UPDATE_ATTACKS
from moon_jax.data import selection
from moon_jax.data.io import files
from moon_jax.errors import require, setting, UserError
from moon_jax.methods import registry
from moon_jax.simulation import (
  accounting,
  federation_checks,
  metric_functions,
)

_PATHS = tuple(name for name, facts in FACTS.items()
               if facts['placeholder'] in ('DIR', 'FILE', 'PATH'))


def validate(config: Config) -> Config:
  """Returns `config` with values in their types, if it can be run.

  Parts are in their normal form. Centralized becomes one client with all
  examples.
  """
  platforms.check_settings()
  config = dataclasses.replace(config, **limits.check(config))
  suggest.check_names('dataset', config.dataset, DATASETS, 'MODULE:LOADER')
  for name in config.logger_names():
    suggest.check_names('loggers', name, LOGGERS, 'MODULE:CLASS')
  config = dataclasses.replace(
      config, dataset=str(parts.dataset_call(config.dataset) or config.dataset),
      **{kind: parts.normal(kind, getattr(config, kind)) for kind in PARTS})
  _check_paths(config)
  _check_alone(config)
  _check_cohort(config)
  _check_rounds(config)
  _check_tokens(config)
  _check_updates(config)
  _check_privacy(config)
  _check_evaluation(config)
  if config.cohort.name != 'file':  # the cohorts are checked when they are read
    registry.rule_of(config, config.cohort_size())
  registry.attack_of(config)
  parts.make('compress', config.compress)
  if config.has_clock() and config.clock.name != 'file':  # read later
    registry.clock_of(dataclasses.replace(
        config, clock=config.clock.replace(availability_file='')))
  registry.backdoor_of(config)
  metric_functions.names_in(config.metrics)
  if not config.algorithm.is_own:
    _check_needs(config)
  _check_selection(config)
  if config.algorithm.name == 'centralized':
    config = dataclasses.replace(
        config, num_clients=1, participation=1.0, partition='iid')
  config = accounting.with_noise(config)
  _check_server_models(config)
  return config


def is_changed(config: Config, name: str) -> bool:
  """Returns whether a setting is not its default."""
  value = getattr(config, name)
  if name in PARTS:
    value = parts.normal(name, value)
  return value != getattr(Config, name)


class _Alone(NamedTuple):
  """A setting with which others must keep their default."""

  name: str
  is_given: Callable[[Config], object]
  others: tuple[str, ...]
  reason: str  # completes "--NAME=VALUE ", with settings in braces
  allows: Mapping[str, Callable[[Config], object]] = {}  # others, by name


def _is(kind, *names):
  return lambda c: getattr(c, kind).name in names


def _only_fails(config):
  """Returns whether rounds differ from the default in failures alone."""
  return config.rounds.name == 'synchronous' and all(
      name.startswith('dropout') for name, _ in config.rounds.arguments)


def _is_always_available(config):
  return not config.args('clock').get('availability_file') and (
      config.clock.name == 'file'
      or registry.clock_of(config).is_always_available())


_ALONE = (
    # Its one client may fail, as the one of FedAvg.
    _Alone('algorithm', _is('algorithm', 'centralized'),
           ('labels', 'cohort', 'clock', 'rounds', 'aggregation', 'attack',
            'compress', 'new_clients'),
           'is one client with all examples, which sends nothing',
           {'rounds': _only_fails, 'labels': lambda c: (
               c.labels.name == 'noise'
               and c.args('labels')['form'] == 'globalized')}),
    _Alone('partition', _is('partition', 'file'),
           ('train_examples', 'validation_fraction'),
           'lists the examples of each client'),
    _Alone('algorithm', lambda c: order.refuses(
        c.algorithm.name, 'with_server_optimizer'), ('server',),
           'has no model at the server that a step could move, or calibrates '
           'it there'),
    _Alone('algorithm', _is('algorithm', 'fedproto'), ('weighting',),
           'averages no models'),
    _Alone('algorithm', _is('algorithm', 'fedas', 'fedcross'), ('weighting',),
           'has weights of its own'),
    _Alone('algorithm', _is('algorithm', 'fedphp'),
           ('cohort', 'clock', 'rounds'),
           'needs clients that all train equally often, since it weighs past '
           'models by their number of rounds',
           {'clock': _is_always_available, 'rounds': _only_fails}),
    _Alone('algorithm', _is('algorithm', 'ccvr'), ('early_stopping',),
           'calibrates in the last of {num_rounds}, before which the run may '
           'end'),
    _Alone('cohort', _is('cohort', 'file'), ('participation',),
           'lists the clients that start in each round'),
    _Alone('rounds', lambda c: c.is_asynchronous(),
           ('participation', 'cohort', 'on_nan', 'schedule', 'aggregation',
            'attack'),
           'has a server step whenever updates have arrived, of clients that '
           'began in different steps'),
    _Alone('privacy', lambda c: c.privacy.name != 'none', ('cohort',),
           'needs clients that are selected without regard to their data',
           {'cohort': _is('cohort', 'file')}),
    _Alone('privacy', lambda c: c.clips_updates(), ('aggregation',),
           'takes the mean of clipped updates, and no other'),
    _Alone('privacy', lambda c: c.clips_updates(), ('attack', 'clock'),
           'needs clients that send honest updates, and are selected without '
           'regard to their data', {'attack': _is('attack', *DATA_ATTACKS)}),
    _Alone('privacy', _is('privacy', 'example'), ('shuffle', 'on_nan'),
           'needs batches that do not depend on labels, and clients that do '
           'not leave a round by their losses'),
    _Alone('aggregation', _is('aggregation', 'secure_sum'), ('compress',),
           'sends masked integers, which cannot be compressed'),
)


def _check_alone(config):
  for alone in _ALONE:
    if not alone.is_given(config):
      continue
    for other in alone.others:
      if is_changed(config, other) and not alone.allows.get(
          other, lambda c: False)(config):
        raise UserError(
            _given(config, alone.name),
            alone.reason.format(num_rounds=setting('num_rounds')),
            _shown(config, other), 'Remove one of them')
  require(config.algorithm.name != 'centralized' or config.partition.name in (
      'iid', 'dirichlet', 'client_dirichlet', 'extended_dirichlet', 'shards',
      'pathological', 'quantity', 'temporal'), 'algorithm=centralized',
          'trains on all examples, without noise on inputs',
          _shown(config, 'partition'),
          f'Remove it, or give {setting("partition")}=iid')


def _given(config, name):
  return f'{name}={getattr(config, name)}'


def _shown(config, *names):
  """Returns settings with their values, as a user gives them."""
  return ' '.join(
      setting(f'no{name}') if getattr(config, name) is False and (
          errors.names_flags()) else setting(_given(config, name))
      for name in names)


_PRIVATE_BY_EXAMPLE = (
    'fedavg', 'fedprox', 'moon', 'moon_l2', 'solo', 'centralized')


def _check_paths(config):
  paths = {name: getattr(config, name) for name in _PATHS} | config.files()
  for name, path in paths.items():
    try:
      files.user_path(path, name)
      path.encode('utf-8')
    except UnicodeEncodeError as error:  # Orbax cannot write to such paths
      raise UserError(f'{name}={path!r}', 'must be valid UTF-8', '',
                      'Name another path') from error


def _check_cohort(config):
  count, num_clients = config.participation, config.num_clients
  if not 0 < count <= 1:
    remedy = f'{setting("participation")}=1 samples all'
    if 1 < count <= num_clients:
      remedy = (f'for {count:g} of {setting("num_clients", num_clients)} give '
                f'{setting("participation")}={count / num_clients:.12g}')
    raise UserError(
        'participation', 'must be above 0 and at most 1 (the fraction of '
        'clients sampled per round)', count, remedy)
  require(config.cohort_size(), 'participation', 'must sample a client per '
          f'round of {setting("num_clients", num_clients)}', count,
          f'Raise it to {math.ceil(1e4 / num_clients) / 1e4} or more')
  if config.algorithm.name == 'centralized':
    return
  at_least = f'must be at least {setting("num_clients", num_clients)}'
  require(not 0 < config.train_examples < num_clients, 'train_examples',
          f'{at_least}, one example per client', config.train_examples,
          'Raise it. 0 uses all examples')
  if config.labels.name == 'shift':
    groups = config.args('labels')['groups']
    require(groups <= num_clients, 'labels.groups', 'must be at most '
            f'{setting("num_clients", num_clients)}, one client per group',
            groups, 'Lower it')
    noise = config.args('labels')
    require(noise['noise_rate'] or noise['noise_form'] == 'globalized',
            'labels.noise_form', 'needs label noise', 'noise_rate=0',
            f'Give {setting("labels.noise_rate", 0.1)}, or remove it')


def _check_rounds(config):
  """Checks rounds, simulated time and what depends on how clients take part."""
  rounds = config.args('rounds')
  timed = [name for name, value in config.rounds.arguments
           if name in ('over_selection', 'deadline', 'tiers')]
  require(config.has_clock() or not (timed or config.is_asynchronous()),
          _given(config, 'rounds'), 'needs simulated time', '',
          f'Give {setting("clock")}=lognormal, or '
          f'{setting("clock")}=file(path=...)')
  if rounds.get('partial_work'):
    require(rounds['deadline'], 'rounds.partial_work',
            'needs a deadline that clients would miss', '',
            f'Give {setting("rounds.deadline")}, in simulated seconds')
    require(config.algorithm.name != 'fedproto' or config.args('algorithm')[
        'form'] != 'released', 'rounds.partial_work',
            'has clients without whole epochs',
            f'{setting("algorithm.form")}=released', 'Remove one of them')
  require(rounds.get('dropout_stage', 'before_training') == 'before_training'
          or rounds['dropout_rate'], 'rounds.dropout_stage',
          'needs clients that fail', f'dropout_rate={rounds["dropout_rate"]:g}'
          if 'dropout_rate' in rounds else '',
          f'Give {setting("rounds.dropout_rate", 0.1)}, or remove it')
  require(not timed or config.cohort.name in ('uniform', 'file'),
          _given(config, 'cohort'), 'selects the clients of each round when '
          'the one before has ended', _shown(config, 'rounds'),
          'Remove one of them')
  if config.cohort.name == 'file':
    windows = config.args('clock').get('availability_file')
    require(not windows and not config.is_asynchronous() and not (
        {'over_selection', 'tiers'} & {*timed}), _given(config, 'cohort'),
            'lists the clients that start in each round',
            _shown(config, 'clock' if windows else 'rounds'),
            'Remove one of them')
  if config.is_asynchronous():
    for name in ('concurrency', 'buffer_size'):
      require(rounds[name] <= config.num_clients, f'rounds.{name}',
              f'must be at most {setting("num_clients", config.num_clients)}',
              rounds[name], 'Lower it')
    require(config.algorithm.is_own or not (
        registry.sends_only_model(config) and registry.traffic(
            config.algorithm.name).broadcasts_more),
            _given(config, 'rounds'), 'needs a server that sends its model and '
            'nothing else', _shown(config, 'algorithm'),
            'fedavg and moon have one')
  warmup = config.args('schedule')['warmup']
  require(warmup < config.num_rounds, 'schedule.warmup',
          f'must be below {setting("num_rounds", config.num_rounds)}', warmup,
          'Lower it')
  clock = dict(config.clock.arguments)
  require(not clock.get('availability_file') or not (
      {'availability', 'groups'} & {*clock}), _given(config, 'clock'),
          'has a file of the times at which clients are available', '',
          'Remove its arguments availability and groups')


def _check_tokens(config):
  """Checks that a network knows the token that fills texts, and its side."""
  call = parts.dataset_call(config.dataset)
  side = {'bert': 'right', 'gpt2': 'right',  # the others read the last token
          'char_lstm': 'left', 'transformer': 'left'}.get(config.model.name)
  if not call or call.name != 'text' or side is None:
    return
  texts, source = parts.arguments('dataset', call), _shown(config, 'dataset')
  require(texts['pad_side'] == side, _given(config, 'dataset'), 'must have '
          f'pad_side={side} for {setting("model", config.model.name)}',
          texts['pad_side'], f'Give pad_side={side}')
  if side == 'left':
    return
  token, known = texts['pad_token'], config.args('model')['pad_token']
  require(known == token, 'model.pad_token', f'must be {token}, the pad_token '
          f'of {source}', known, f'Give {setting("model.pad_token", token)}')


def _check_updates(config):
  """Checks what reads or changes client updates."""
  readers = [name for name, reads in {
      'privacy': config.privacy.name == 'client',
      'aggregation': config.aggregation.name in ROBUST or (
          config.aggregation.is_own),
      'attack': config.attack.name in UPDATE_ATTACKS or config.attack.is_own,
      'compress': config.compress.name != 'none',
      'rounds': config.is_asynchronous()}.items() if reads]
  combines = config.aggregation.name in ('fednova', 'scaffold')
  if combines and not config.algorithm.is_own and not (
      registry.METHODS[config.algorithm.name].can_combine):
    able = ', '.join(name for name, known in registry.METHODS.items()
                     if known.can_combine)
    raise UserError(
        _given(config, 'aggregation'), f'is for {setting("algorithm", able)}',
        config.algorithm, 'Remove it')
  if readers and not config.algorithm.is_own and (
      not registry.sends_only_model(config)):
    private = ', '.join(name for name in registry.METHODS
                        if registry.traffic(name).sends_only_model)
    raise UserError(
        _given(config, readers[0]),
        'needs clients that send their model and nothing else',
        _shown(config, 'algorithm', *['aggregation'] * combines),
        f'Use one of {private}, without {setting("aggregation")}=fednova or '
        'scaffold')
  if config.args('compress').get('download'):
    excluded = [name for name in ('participation', 'cohort')
                if is_changed(config, name)]
    excluded += ['rounds'] * config.is_asynchronous()
    require(not excluded, 'compress.download', 'needs clients that receive the '
            'messages of all rounds, from which each builds the model',
            _shown(config, *excluded[:1]), 'Remove one of them')
    rounds = config.args('rounds')
    require(not rounds['dropout_rate'] or (
        rounds['dropout_stage'] == 'after_training'), 'compress.download',
            'needs clients that receive each message', _shown(config, 'rounds'),
            f'Give {setting("rounds.dropout_stage")}=after_training')


def _check_privacy(config):
  if config.privacy.name == 'none':
    return
  private = config.args('privacy')
  for name in ('clip', 'noise_multiplier'):
    require(not private[name] or 1e-6 <= private[name] <= 1e6,
            f'privacy.{name}', 'must be 0 or between 1e-06 and 1e+06',
            private[name], '1 is usual')
  require(private['noise_multiplier'] or private['epsilon']
          or private['delta'] == 1e-5, 'privacy.delta', 'is for the epsilon of '
          'noise', 'no noise',
          f'Give {setting("privacy.noise_multiplier", 1)}, or remove it')
  if config.privacy.name == 'example':
    require(config.augmentation.name != 'mixup', _given(config, 'privacy'),
            'needs gradients of single examples',
            _shown(config, 'augmentation'), 'Remove one of them')
    return require(
        config.algorithm.name in _PRIVATE_BY_EXAMPLE, _given(config, 'privacy'),
        f'is only for {setting("algorithm", ", ".join(_PRIVATE_BY_EXAMPLE))}',
        config.algorithm, 'Give one of them')
  require(private['noise_by'] != 'clients' or not private['quantile'],
          f'privacy.quantile={private["quantile"]}',
          'adapts the norm at the server',
          f'{setting("privacy.noise_by")}=clients', 'Remove one of them')
  require(not config.clips_updates() or config.weighting == 'uniform',
          _given(config, 'privacy'), f'needs {setting("weighting")}=uniform, '
          'so that all clients have the same weight', config.weighting)


def _check_server_models(config):
  """Checks the parts beside a topology; a `Federation` checks your own, too."""
  if config.topology.name == 'star' or any(
      getattr(config, kind).is_own for kind in ('topology', 'algorithm')) or (
          any(name.startswith('topology') for name in config.files())):
    return
  federation_checks.check_server_models(
      registry.topology_of(config), registry.make(config),
      config.is_asynchronous(), config.new_clients, bool(config.init_from),
      'init_from')


def _check_evaluation(config):
  for name in ('keep_best', 'early_stopping'):
    require(not getattr(config, name) or config.validation_fraction, name,
            'selects by the validation accuracy, never by the test accuracy, '
            f'and needs {setting("validation_fraction")}', 'none',
            f'{setting("validation_fraction")}=0.1 is usual')
  after = config.early_stopping_after
  require(not after or config.early_stopping, 'early_stopping_after',
          f'needs {setting("early_stopping")}', 'none',
          f'{setting("early_stopping", 5)} is usual')
  require(after < config.num_rounds or not after, 'early_stopping_after',
          f'must be below {setting("num_rounds", config.num_rounds)}', after,
          f'Lower it, or remove {setting("early_stopping")}')
  require(not config.keep_best or not registry.combined(config).per_client_init,
          'keep_best', 'saves the global model',
          f'{setting("algorithm", config.algorithm)}, which has none '
          '(per_client_init)', 'Remove one of them')
  require(not config.client_test_fraction or config.client_eval_every,
          'client_test_fraction',
          f'holds out examples for {setting("client_eval_every")}',
          f'{setting("client_eval_every")}=0',
          f'Give {setting("client_eval_every", config.num_rounds)} to evaluate '
          'clients after the last round, or fewer rounds to evaluate them more '
          'often')
  require(config.client_eval == 'cohort' or config.client_eval_every,
          'client_eval', f'needs {setting("client_eval_every")} above 0',
          config.client_eval, f'Give {setting("client_eval_every", 10)}')
  require(config.client_eval == 'cohort' or config.client_test_fraction
          or config.partition.name == 'natural', 'client_eval',
          'needs held-out examples of clients', 'none',
          f'Give {setting("client_test_fraction", 0.2)}')
  require(not config.new_clients or config.client_eval != 'cohort',
          'new_clients', f'needs {setting("client_eval")}=all or both, which '
          'evaluates them', setting('client_eval', config.client_eval),
          f'Give {setting("client_eval", "all")}')
  require(not config.new_clients or (
      config.labels.name == 'clean' and config.partition.name not in (
          'file', 'feature_noise', 'rotated')), 'new_clients',
          f'needs {setting("labels")}=clean, and another '
          f'{setting("partition")} than file, feature_noise and rotated',
          _shown(config, 'labels', 'partition'),
          'Remove one of them')


def _check_needs(config):
  """Checks what a built-in method assumes, before data are loaded."""
  needs = registry.combined(config).needs
  require('all_clients' not in needs or not config.misses_clients(),
          _given(config, 'algorithm'), 'trains all clients in each round',
          _shown(config, 'participation', 'cohort'), 'Remove them')
  optimizer = optimizers.resolve(config.optimizer)
  settings = {'optimizer': optimizer.name, **optimizer.hparams}
  needed = {name: value for name, value in needs.items()
            if name not in ('all_clients', 'num_clients')}
  got = {name: settings.get(name, getattr(config, name, None))
         for name in needed}
  if needed != got:
    show = lambda values: ' '.join(
        setting(f'optimizer.{name}' if name in ('momentum', 'weight_decay')
                else name, value) for name, value in values.items())
    around = '' if config.aggregation.name == 'average' else (
        f'{_shown(config, "aggregation")} ')
    raise UserError(
        _given(config, 'algorithm'), f'{around}needs {show(needed)}, '
        f'{registry.method(config).reason}', show(got), 'Give ' + show({
            name: value for name, value in needed.items()
            if got[name] != value}))


def _check_selection(config):
  """Calls a built-in selection; your own is called when data are loaded."""
  if not config.cohort.is_own and (select := registry.selection_of(config)):
    count = config.num_clients
    require(config.cohort_size() < count, _given(config, 'cohort'),
            f'selects some of the clients; {setting("participation")} below 1 '
            'is their fraction', f'all {count} clients',
            f'Give {setting("participation", 0.5)}')
    selection.choose(select, selection.begin(count), config.cohort_size(),
                     np.ones(count, int), config.seed)
