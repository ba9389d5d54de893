"""Validates configurations before anything compiles.

`moon_jax.config.limits` checks single settings, and `moon_jax.config.parts`
the arguments of a part. This module checks paths, and settings that do not fit
together. `moon_jax.simulation.federation_checks` checks federations.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from moon_jax import errors, optimizers, platforms
from moon_jax.algorithms import order
from moon_jax.config import (
  Config,
  FACTS,
  limits,
  LOGGERS,
  PARTS,
  parts,
  suggest,
)
from moon_jax.config.kinds import ROBUST, UPDATE_ATTACKS
from moon_jax.data import selection
from moon_jax.data.io import files
from moon_jax.errors import setting, UserError
from moon_jax.methods import registry
from moon_jax.simulation import metric_functions

_PATHS = tuple(name for name, facts in FACTS.items()
               if facts['placeholder'] in ('DIR', 'FILE', 'PATH'))


def validate(config: Config) -> Config:
  """Returns `config` with parts in their normal form, if it can be run.

  Centralized becomes one client with all examples.

  Raises:
    UserError: naming the first invalid setting, of the run or of JAX, its value
      and a remedy.
  """
  platforms.check_settings()
  limits.check(config)
  for name, facts in FACTS.items():
    if facts['names']:
      suggest.check_names(name, getattr(config, name))
  for name in config.logger_names():
    suggest.check_names('loggers', name, LOGGERS, 'MODULE:CLASS')
  config = dataclasses.replace(config, **{
      kind: parts.normal(kind, getattr(config, kind)) for kind in PARTS})
  _check_paths(config)
  _check_alone(config)
  _check_cohort(config)
  _check_rounds(config)
  _check_arithmetic(config)
  _check_updates(config)
  _check_privacy(config)
  _check_evaluation(config)
  if config.cohort.name != 'file':  # the cohorts are checked when they are read
    registry.rule_of(config, config.cohort_size())
  registry.attack_of(config)
  registry.compressor_of(config)
  if config.clock.name != 'file':  # read later
    registry.clock_of(dataclasses.replace(
        config, clock=parts.Part(config.clock.name, tuple(
            (name, value) for name, value in config.clock.arguments
            if name != 'availability_file'))))
  _check_selection(config)
  registry.backdoor_of(config)
  metric_functions.names_in(config.metrics)
  if not config.algorithm.is_own:
    _check_needs(config)
  if config.algorithm.name == 'centralized':
    config = dataclasses.replace(
        config, num_clients=1, participation=1.0, partition='iid')
  return config


def is_changed(config: Config, name: str) -> bool:
  """Returns whether a setting is not its default."""
  value = getattr(config, name)
  if name in PARTS:
    value = parts.normal(name, value)
  return value != getattr(Config, name)


class _Alone(NamedTuple):
  """A setting beside which others must keep their default."""

  name: str
  is_given: Callable[[Config], object]
  others: tuple[str, ...]
  reason: str  # completes "--NAME=VALUE ", with settings in braces


def _is(kind, *names):
  return lambda c: getattr(c, kind).name in names


_ALONE = (
    _Alone('algorithm', _is('algorithm', 'centralized'),
           ('labels', 'cohort', 'clock', 'rounds', 'aggregation', 'attack',
            'compress'), 'has one client with all examples'),
    _Alone('partition', _is('partition', 'file'),
           ('train_examples', 'validation_fraction'),
           'lists the examples of each client'),
    _Alone('algorithm', lambda c: order.refuses(
        c.algorithm.name, 'with_server_optimizer'), ('server',),
           'has no model at the server that a step could move, or calibrates '
           'it there'),
    _Alone('algorithm', _is('algorithm', 'fedproto'), ('weighting',),
           'averages no models'),
    _Alone('algorithm', _is('algorithm', 'fedphp'),
           ('cohort', 'clock', 'rounds'),
           'takes from {participation} how often clients train'),
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
    _Alone('privacy', lambda c: c.clips_updates(),
           ('aggregation', 'attack', 'clock', 'cohort'),
           'accounts for the mean of honest updates of clients that are '
           'selected without regard to their data'),
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
      if is_changed(config, other):
        value = getattr(config, other)
        reason = alone.reason.format(
            participation=setting('participation'),
            num_rounds=setting('num_rounds'))
        raise UserError(
            f'{setting(alone.name, getattr(config, alone.name))} {reason}; got '
            + (setting(f'no{other}') if value is False and errors.names_flags()
               else setting(other, value))
            + '. Remove one of them')
  if config.algorithm.name == 'centralized' and config.partition.name not in (
      'iid', 'dirichlet', 'shards', 'quantity'):
    raise UserError(
        f'{setting("algorithm")}=centralized trains on all examples unchanged; '
        f'remove {setting("partition", config.partition)}, or give '
        f'{setting("partition")}=iid')


_PRIVATE_BY_EXAMPLE = 'fedavg', 'fedprox', 'moon', 'moon_l2', 'solo', (
    'centralized')


def _check_paths(config):
  paths = {name: getattr(config, name) for name in _PATHS} | config.files()
  for name, path in paths.items():
    try:
      files.user_path(path, name)
      path.encode('utf-8')
    except UnicodeEncodeError as error:  # Orbax cannot write to such paths
      raise UserError(f'{setting(name)}={path!r} is not valid UTF-8; name '
                      'another path') from error


def _check_cohort(config):
  count, num_clients = config.participation, config.num_clients
  if not 0 < count <= 1:
    remedy = f'{setting("participation")}=1 samples all'
    if 1 < count <= num_clients:
      remedy = (f'for {count:g} of {setting("num_clients", num_clients)} give '
                f'{setting("participation")}={count / num_clients:.12g}')
    raise UserError(
        f'{setting("participation")} must be above 0 and at most 1 (the '
        f'fraction of clients sampled per round); got {count}. {remedy}')
  if config.cohort_size() < 1:
    enough = math.ceil(1e4 / num_clients) / 1e4
    raise UserError(
        f'{setting("participation", count)} of '
        f'{setting("num_clients", num_clients)} samples no client per round; '
        f'raise {setting("participation")} to {enough} or more')
  is_federated = config.algorithm.name != 'centralized'
  if is_federated and 0 < config.train_examples < num_clients:
    raise UserError(
        f'{setting("train_examples", config.train_examples)} must be at least '
        f'{setting("num_clients", num_clients)}, one example per client; raise '
        'it. 0 uses all examples')
  if is_federated and config.labels.name == 'shift' and (
      count := config.args('labels')['groups']) > num_clients:
    raise UserError(
        f'{setting("labels.groups", count)} must be at most '
        f'{setting("num_clients", num_clients)}, one client per group; lower '
        'it')


def _check_rounds(config):
  """Checks rounds, simulated time and what depends on how clients take part."""
  rounds = config.args('rounds')
  timed = [name for name, value in config.rounds.arguments
           if name in ('over_selection', 'deadline', 'tiers')]
  if not config.has_clock() and (timed or config.is_asynchronous()):
    raise UserError(
        f'{setting("rounds", config.rounds)} needs simulated time; give '
        f'{setting("clock")}=lognormal, or {setting("clock")}=file(path=...)')
  if rounds.get('partial_work') and not rounds['deadline']:
    raise UserError(
        f'{setting("rounds.partial_work")} needs a deadline that clients would '
        f'miss; give {setting("rounds.deadline")}, in simulated seconds')
  if rounds.get('partial_work') and config.algorithm.name == 'fedproto' and (
      config.args('algorithm')['form'] == 'released'):
    raise UserError(
        f'{setting("rounds.partial_work")} has clients without whole epochs; '
        f'remove it, or {setting("algorithm.form")}=released of fedproto')
  if timed and config.cohort.name not in ('uniform', 'file'):
    raise UserError(
        f'{setting("cohort", config.cohort)} selects the clients of each round '
        'when the one before has ended; got '
        f'{setting("rounds", config.rounds)}. Remove one of them')
  if config.cohort.name == 'file':
    listed = [name for name in ('over_selection', 'tiers')
              if name in dict(config.rounds.arguments)]
    windows = config.args('clock').get('availability_file')
    if listed or windows or config.is_asynchronous():
      name = 'clock' if windows else 'rounds'
      raise UserError(
          f'{setting("cohort", config.cohort)} lists the clients that start in '
          f'each round; got {setting(name, getattr(config, name))}. Remove one '
          'of them')
  if config.is_asynchronous():
    for name in ('concurrency', 'buffer_size'):
      if rounds[name] > config.num_clients:
        raise UserError(
            f'{setting(f"rounds.{name}", rounds[name])} must be at most '
            f'{setting("num_clients", config.num_clients)}; lower it')
    if not config.algorithm.is_own and registry.sends_only_model(
        config) and registry.traffic(config.algorithm.name).broadcasts_more:
      raise UserError(
          f'{setting("rounds", config.rounds)} requires a server that sends '
          'its model and nothing else, not '
          f'{setting("algorithm", config.algorithm)}; fedavg and moon have one')
  warmup = config.args('schedule')['warmup']
  if warmup >= config.num_rounds:
    raise UserError(
        f'{setting("schedule.warmup", warmup)} must be below '
        f'{setting("num_rounds", config.num_rounds)}; lower it')
  clock = dict(config.clock.arguments)
  if clock.get('availability_file') and {'availability', 'groups'} & {*clock}:
    raise UserError(
        f'{setting("clock", config.clock)} has a file of the times at which '
        'clients are available; remove its arguments availability and groups')


def _check_arithmetic(config):
  """Checks the arithmetic of a built-in network."""
  if config.model.is_own:
    return
  given = config.args('model')
  precision = given.get('precision', 'highest')
  if precision != 'highest' and given['dtype'] != 'float32':
    raise UserError(
        f'{setting("model.precision", precision)} is for '
        f'{setting("model.dtype")}=float32; got '
        f'{setting("model.dtype", given["dtype"])}. Remove one of them')
  if given.get('convolution') == 'native' and precision not in (
      'highest', 'tf32'):
    raise UserError(
        f'{setting("model.convolution")}=native computes at '
        f'{setting("model.precision")}=highest or tf32; got {precision}. Give '
        f'{setting("model.convolution")}=im2col, or '
        f'{setting("model.dtype")}=bfloat16 without '
        f'{setting("model.precision")}')


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
        f'{setting("aggregation", config.aggregation)} is for '
        f'{setting("algorithm", able)}; got {config.algorithm}. Remove it')
  if readers and not config.algorithm.is_own and (
      not registry.sends_only_model(config)):
    private = ', '.join(name for name in registry.METHODS
                        if registry.traffic(name).sends_only_model)
    raise UserError(
        f'{setting(readers[0], getattr(config, readers[0]))} requires clients '
        'that send their model and nothing else, not '
        f'{setting("algorithm", config.algorithm)}'
        + f' {setting("aggregation", config.aggregation)}' * combines
        + f'; use one of {private}, without {setting("aggregation")}=fednova '
          'or scaffold')
  if config.args('compress').get('download'):
    excluded = [name for name in ('participation', 'cohort')
                if is_changed(config, name)]
    if excluded or config.is_asynchronous():
      name = excluded[0] if excluded else 'rounds'
      raise UserError(
          f'{setting(name, getattr(config, name))} keeps clients away from '
          f'rounds, and with {setting("compress.download")} each builds the '
          'model from the messages of all rounds; remove one of them')
    rounds = config.args('rounds')
    if rounds['dropout_rate'] and rounds['dropout_stage'] == 'before_training':
      raise UserError(
          f'{setting("compress.download")} needs clients that receive each '
          f'message; with {setting("rounds", config.rounds)} give '
          f'{setting("rounds.dropout_stage")}=after_training')


def _check_privacy(config):
  if config.privacy.name == 'none':
    return
  private = config.args('privacy')
  for name in ('clip', 'noise_multiplier'):
    if private[name] and not 1e-6 <= private[name] <= 1e6:
      raise UserError(
          f'{setting(f"privacy.{name}")} must be 0 or between 1e-06 and 1e+06; '
          f'got {private[name]}. {setting(f"privacy.{name}")}=1 is usual')
  if config.privacy.name == 'example':
    if config.algorithm.name not in _PRIVATE_BY_EXAMPLE:
      raise UserError(
          f'{setting("privacy", config.privacy)} is only for '
          f'{setting("algorithm", ", ".join(_PRIVATE_BY_EXAMPLE))}; got '
          f'{config.algorithm}. Give one of them')
    return
  if private['noise_by'] == 'clients' and private['quantile']:
    raise UserError(
        f'{setting("privacy.quantile", private["quantile"])} adapts the norm '
        f'at the server; remove it or {setting("privacy.noise_by")}=clients')
  if config.clips_updates() and config.weighting != 'uniform':
    raise UserError(
        f'{setting("privacy", config.privacy)} requires '
        f'{setting("weighting")}=uniform, so that all clients have the same '
        f'weight; got {setting("weighting", config.weighting)}')


def _check_evaluation(config):
  for name in ('keep_best', 'early_stopping'):
    if getattr(config, name) and not config.validation_fraction:
      raise UserError(
          f'{setting(name)} selects by the validation accuracy, never by the '
          f'test accuracy, and needs {setting("validation_fraction")}, such as '
          f'0.1; got {setting(name, getattr(config, name))} without it')
  if config.keep_best and config.algorithm.name == 'solo':
    raise UserError(f'{setting("keep_best")} saves the global model, and '
                    f'{setting("algorithm")}=solo has none; remove '
                    f'{setting("keep_best")}')
  if config.client_test_fraction and not config.client_eval_every:
    raise UserError(
        f'{setting("client_test_fraction", config.client_test_fraction)} holds '
        f'out examples for {setting("client_eval_every")}, which is 0; give '
        f'{setting("client_eval_every", config.num_rounds)} to evaluate '
        'clients after the last round, or fewer rounds to evaluate them more '
        'often')


def _check_needs(config):
  """Checks what a built-in method assumes, before data are loaded."""
  needs = registry.combined(config).needs
  if 'all_clients' in needs and config.misses_clients():
    raise UserError(
        f'{setting("algorithm", config.algorithm)} trains all clients in each '
        f'round; got {setting("participation", config.participation)} '
        f'{setting("cohort", config.cohort)}. Remove them')
  optimizer = optimizers.of(config.optimizer)
  settings = {'optimizer': optimizer.name, **optimizer.hparams}
  needed = {name: value for name, value in needs.items()
            if name not in ('all_clients', 'num_clients')}
  got = {name: settings.get(name, getattr(config, name, None))
         for name in needed}
  if needed != got:
    show = lambda values: ' '.join(
        setting(f'optimizer.{name}' if name in ('momentum', 'weight_decay')
                else name, value) for name, value in values.items())
    method = setting('algorithm', config.algorithm) + (
        f' {setting("aggregation", config.aggregation)}'
        if config.aggregation.name != 'average' else '')
    raise UserError(f'{method} needs {show(needed)}, '
                    f'{registry.method(config).reason}; got {show(got)}')


def _check_selection(config):
  """Calls a built-in selection; your own is called when data are loaded."""
  if not config.cohort.is_own and (select := registry.selection_of(config)):
    count = config.num_clients
    selection.choose(select, selection.begin(count), config.cohort_size(),
                     np.ones(count, int), config.seed)
