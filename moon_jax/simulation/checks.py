"""Validates configurations before anything compiles.

`moon_jax.config.limits` checks single flags by what `moon_jax.config.flags`
knows about them; this module checks names, paths and flags that do not fit
together. `moon_jax.simulation.federation_checks` checks values in Python.
"""

from collections.abc import Callable
import dataclasses
import math

import numpy as np

from moon_jax import errors, platforms
from moon_jax.algorithms import registry, server
from moon_jax.config import (
  Config,
  FACTS,
  is_user_code,
  limits,
  LOGGERS,
  suggest,
)
from moon_jax.config.flags import ROBUST, UPDATE_ATTACKS
from moon_jax.data import selection
from moon_jax.data.io import files
from moon_jax.errors import UserError
from moon_jax.simulation import metric_functions

_PATHS = tuple(name for name, facts in FACTS.items()
               if facts['placeholder'] in ('DIR', 'FILE', 'PATH'))


def validate(config: Config) -> Config:
  """Returns `config` with open settings resolved, if it can be run.

  A mu of -1 becomes the method's default; centralized becomes one client with
  all examples.

  Raises:
    UserError: naming the first invalid flag or setting of JAX, its value and a
      remedy.
  """
  platforms.check_settings()
  limits.check(config)
  for name, facts in FACTS.items():
    if facts['names']:
      suggest.check_names(name, getattr(config, name))
  for name in config.logger_names():
    suggest.check_names('loggers', name, LOGGERS, 'MODULE:CLASS')
  _check_paths(config)
  method = registry.method(config)
  _check_combining(config, method)
  for is_excluded, message in _EXCLUDED:
    if is_excluded(config):
      raise UserError(message.format(
          c=config, name=registry.flags_of(config),
          private=', '.join(name for name, known in registry.METHODS.items()
                            if known.sends_only_model),
          unused=registry.unused(config)))
  _check_cohort(config)
  if not config.cohorts_file:  # the cohorts are checked when they are read
    registry.rule_of(config, config.cohort_size())
  registry.attack_of(config)
  registry.staleness_of(config)
  if not (config.clock_file or config.availability_file):  # read later
    registry.clock_of(config)
  _check_selection(config)
  registry.backdoor_of(config)
  metric_functions.names_in(config.metrics)
  if config.mu == -1:
    config = dataclasses.replace(config, mu=registry.default_mu(config))
  if not config.has_user_algorithm():
    _check_needs(config, method)
  if config.algorithm == 'centralized':
    config = dataclasses.replace(
        config, num_clients=1, participation=1.0, partition='iid')
  return config


def _is_changed(config: Config, name: str) -> bool:
  return getattr(config, name) != getattr(Config, name)


_LISTS = ('--partition_file={c.partition_file} lists the examples of each '
          'client; remove ')
_OF_UPDATES = {  # flags that read or change client updates, and whether given
    'dp_clip': lambda c: c.dp_clip and c.dp_unit == 'client',
    'aggregation': lambda c: c.aggregation in ROBUST,
    'attack': lambda c: c.attack in UPDATE_ATTACKS,
    'compress': lambda c: c.compress != 'none',
    'asynchronous': lambda c: c.asynchronous != 'none'}
BROADCASTS_MORE = 'fedgkd', 'fedkd'  # methods whose server sends more than a
# model, of those whose clients send a model and nothing else
_PRIVATE_BY_EXAMPLE = 'fedavg', 'fedprox', 'moon', 'solo', 'centralized'
_ONE_CLIENT = ('--algorithm=centralized has one client with all examples; '
               'remove ')


def _is_reduced(c):
  """Returns whether a network of the package computes below full precision."""
  return c.precision != 'highest' and not c.has_user_model()


# What is excluded: whether a configuration `c` is, and the message that names
# the flags, their values and a remedy.
_EXCLUDED: tuple[tuple[Callable[[Config], object], str], ...] = (
    # Values.
    (lambda c: c.mu < 0 and c.mu != -1,
     '--mu must be at least 0, or -1; got {c.mu}. The paper tries --mu=0.1, 1, '
     '5 and 10.'),
    (lambda c: not 0 < c.dp_delta < 1,
     '--dp_delta must be above 0 and below 1; got {c.dp_delta}. Below 1 / '
     'num_clients is usual'),
    *((lambda c, name=name: getattr(c, name) and not (
        1e-6 <= getattr(c, name) <= 1e6),
       f'--{name} must be 0 or between 1e-06 and 1e+06; got {{c.{name}}}. '
       f'--{name}=1 is usual')
      for name in ('dp_clip', 'dp_noise_multiplier')),
    # Splits.
    *((lambda c, name=name: c.partition_file and _is_changed(c, name),
       _LISTS + f'--{name}={{c.{name}}}')
      for name in ('partition', 'train_examples')),
    (lambda c: c.partition_file and c.validation_fraction,
     _LISTS + '--validation_fraction={c.validation_fraction}, which takes '
     'examples away before the partition'),
    (lambda c: c.algorithm == 'centralized' and is_user_code(c.partition),
     _ONE_CLIENT + '--partition={c.partition}'),
    *((lambda c, name=name: c.algorithm == 'centralized' and _is_changed(
        c, name), _ONE_CLIENT + f'--{name}={{c.{name}}}')
      for name in ('partition_file', 'label_noise_form', 'concept_shift',
                   'cohort', 'cohorts_file', 'clock', 'clock_file',
                   'aggregation', 'attack', 'compress')),
    (lambda c: c.algorithm == 'centralized' and c.partition in (
        'natural', 'feature_noise'),
     '--algorithm=centralized trains on all examples unchanged; remove '
     '--partition={c.partition}, or give --partition=iid'),
    (lambda c: c.algorithm != 'centralized' and (
        0 < c.train_examples < c.num_clients),
     '--train_examples={c.train_examples} must be at least --num_clients='
     '{c.num_clients}, one example per client; raise it. 0 uses all examples'),
    (lambda c: c.algorithm != 'centralized' and c.concept_shift > c.num_clients,
     '--concept_shift={c.concept_shift} must be at most --num_clients='
     '{c.num_clients}, one client per group; lower it'),
    # Servers.
    (lambda c: c.algorithm == 'ccvr' and not server.is_plain(c),
     '--algorithm=ccvr calibrates the last layer at the server, which a server '
     'optimizer would change again; got --server_optimizer={c.server_optimizer}'
     ' --server_momentum={c.server_momentum} --server_learning_rate='
     '{c.server_learning_rate}. Remove them'),
    (lambda c: not registry.method(c).has_server and not server.is_plain(c),
     '--algorithm={c.algorithm} has no model at the server; got '
     '--server_optimizer={c.server_optimizer} --server_momentum='
     '{c.server_momentum} --server_learning_rate={c.server_learning_rate}. '
     'Remove them'),
    (lambda c: c.algorithm == 'fedproto' and _is_changed(c, 'weighting'),
     '--algorithm=fedproto averages no models; remove --weighting='
     '{c.weighting}'),
    # Training.
    *((lambda c, name=name: c.algorithm == 'fedphp' and _is_changed(c, name),
       '--algorithm=fedphp takes from --participation how often clients train; '
       f'remove --{name}={{c.{name}}}')
      for name in ('cohorts_file', 'asynchronous', 'cohort', 'deadline',
                   'over_selection', 'tiers', 'availability_file')),
    (lambda c: c.algorithm == 'ccvr' and c.early_stopping,
     '--algorithm=ccvr calibrates in the last of --num_rounds, before which '
     '--early_stopping={c.early_stopping} may end the run; remove it'),
    (lambda c: c.checkpoint_every and (
        c.checkpoint_keep_every % c.checkpoint_every),
     '--checkpoint_keep_every={c.checkpoint_keep_every} must be a multiple of '
     '--checkpoint_every={c.checkpoint_every}'),
    (lambda c: c.client_test_fraction and not c.client_eval_every,
     '--client_test_fraction={c.client_test_fraction} holds out examples for '
     '--client_eval_every, which is 0; give --client_eval_every={c.num_rounds} '
     'to evaluate clients after the last round, or fewer rounds to evaluate '
     'them more often'),
    (lambda c: c.learning_rate_schedule == 'step' and not c.decay_rounds,
     '--learning_rate_schedule=step needs --decay_rounds, the rounds between '
     'decays, at least 1; got 0. --decay_rounds=30 is usual'),
    *((lambda c, name=name: _is_changed(c, name) and (
        name in registry.unused(c)),
       f'--{name}={{c.{name}}} has no effect with {{unused[{name}]}}. Remove '
       'one of them')
      for name in ('aggregation_args', 'attack_args', 'attackers',
                   'augmentation_draws', 'buffer_size', 'clock_args',
                   'compress_args', 'compress_download', 'compress_fraction',
                   'concurrency', 'decay_rounds', 'dp_noise_by', 'epoch_losses',
                   'label_noise_form', 'learning_rate_decay', 'max_staleness',
                   'server_momentum', 'staleness', 'staleness_args')),
    (lambda c: c.warmup_rounds >= c.num_rounds,
     '--warmup_rounds={c.warmup_rounds} must be below --num_rounds='
     '{c.num_rounds}; lower it'),
    (lambda c: c.cohort_args and c.cohort == 'uniform',
     '--cohort_args={c.cohort_args} has no effect with --cohort=uniform. '
     'Remove one of them'),
    *((lambda c, name=name: c.cohort != 'uniform' and _is_changed(c, name),
       '--cohort={c.cohort} selects the clients of each round when the one '
       f'before has ended; remove it or --{name}={{c.{name}}}')
      for name in ('cohorts_file', 'over_selection', 'deadline', 'tiers',
                   'asynchronous')),
    (lambda c: c.dp_clip and c.cohort != 'uniform',
     '--cohort={c.cohort} may select clients by their losses, which depend on '
     'the data and for which the epsilon of --dp_clip={c.dp_clip} does not '
     'account; remove one of them'),
    (lambda c: c.model_args and not c.has_user_model(),
     '--model_args={c.model_args} is for a custom network; '
     '--model={c.model} takes flags'),
    # Simulated time.
    (lambda c: c.clock_file and c.clock != 'none',
     '--clock_file={c.clock_file} has the speeds of clients; remove '
     '--clock={c.clock}'),
    *((lambda c, name=name: _is_changed(c, name) and not c.has_clock(),
       f'--{name}={{c.{name}}} needs simulated time; give --clock=lognormal or '
       '--clock_file')
      for name in ('over_selection', 'deadline', 'tiers', 'asynchronous',
                   'availability_file')),
    *((lambda c, name=name: c.availability_file and name in c.clock_args,
       '--availability_file={c.availability_file} has the times at which '
       f'clients are available; remove {name} from '
       '--clock_args={c.clock_args}') for name in ('availability', 'groups')),
    (lambda c: c.partial_work and not c.deadline,
     '--partial_work needs a deadline that clients would miss; give '
     '--deadline, in simulated seconds'),
    (lambda c: c.partial_work and (c.epoch_losses or (
        c.algorithm == 'fedproto' and 'released' in c.algorithm_args)),
     '--partial_work has clients without whole epochs; remove it or '
     '--epoch_losses, or the released form of fedproto'),
    *((lambda c, name=name: c.asynchronous != 'none' and not getattr(c, name),
       f'--asynchronous={{c.asynchronous}} needs --{name}, {what}, at least '
       f'{least}')
      for name, what, least in (
          ('concurrency', 'the clients that train at the same time', 2),
          ('buffer_size', 'the updates per server step', 1))),
    *((lambda c, name=name: c.asynchronous != 'none' and getattr(
        c, name) > c.num_clients,
       f'--{name}={{c.{name}}} must be at most --num_clients={{c.num_clients}};'
       ' lower it') for name in ('concurrency', 'buffer_size')),
    *((lambda c, name=name: c.asynchronous != 'none' and _is_changed(c, name),
       '--asynchronous={c.asynchronous} has a server step whenever '
       f'--buffer_size updates arrive; remove --{name}={{c.{name}}}')
      for name in ('participation', 'cohorts_file', 'over_selection', 'tiers',
                   'deadline', 'dropout_rate', 'on_nan')),
    (lambda c: c.asynchronous != 'none' and c.algorithm in BROADCASTS_MORE,
     '--asynchronous={c.asynchronous} requires a server that sends its model '
     'and nothing else, not --algorithm={c.algorithm}; fedavg and moon have one'
     ),
    *((lambda c, name=name: c.asynchronous != 'none' and _is_changed(c, name),
       '--asynchronous={c.asynchronous} has clients that begin in different '
       f'steps; remove --{name}={{c.{name}}}')
      for name in ('learning_rate_schedule', 'warmup_rounds')),
    *((lambda c, name=name: c.cohorts_file and _is_changed(c, name),
       '--cohorts_file={c.cohorts_file} lists the clients that start in each '
       f'round; remove --{name}={{c.{name}}}')
      for name in ('participation', 'over_selection', 'tiers',
                   'availability_file')),
    # Arithmetic.
    (lambda c: _is_reduced(c) and c.dtype != 'float32',
     '--precision={c.precision} is for --dtype=float32; got --dtype={c.dtype}. '
     'Remove one of them'),
    (lambda c: _is_reduced(c) and c.model in ('char_lstm', 'transformer'),
     '--model={c.model} computes at --precision=highest only; got '
     '{c.precision}. Remove --precision, or give --dtype=bfloat16'),
    (lambda c: _is_reduced(c) and (
        c.convolution == 'native' and c.precision != 'tf32'),
     '--convolution=native computes at --precision=highest or tf32; got '
     '{c.precision}. Give --convolution=im2col, or --dtype=bfloat16 without '
     '--precision'),
    # Differential privacy.
    *((lambda c, name=name: _is_changed(c, name) and not c.dp_clip,
       f'--{name}={{c.{name}}} {what} --dp_clip, which is 0; give --dp_clip, '
       'such as 1')
      for name, what in (('dp_noise_multiplier', 'is a multiple of'),
                         ('dp_quantile', 'adapts'),
                         ('dp_unit', 'clips gradients to'))),
    (lambda c: c.dp_unit == 'example' and not c.shuffle,
     '--dp_unit=example needs batches that do not depend on the labels; remove '
     '--noshuffle'),
    (lambda c: c.dp_unit == 'example' and c.on_nan != 'stop',
     '--on_nan={c.on_nan} reveals whose loss is not finite; remove it or '
     '--dp_unit=example'),
    (lambda c: c.dp_unit == 'example' and c.dp_quantile,
     '--dp_quantile={c.dp_quantile} adapts the norm of updates; remove it or '
     '--dp_unit=example'),
    (lambda c: c.dp_noise_by == 'clients' and c.dp_unit == 'example',
     '--dp_unit=example has noise in the local steps of clients; remove '
     '--dp_noise_by=clients'),
    (lambda c: c.dp_noise_by == 'clients' and c.dp_quantile,
     '--dp_quantile={c.dp_quantile} adapts the norm at the server; remove it '
     'or --dp_noise_by=clients'),
    (lambda c: c.dp_unit == 'example' and (
        c.algorithm not in _PRIVATE_BY_EXAMPLE),
     '--dp_unit=example is only for '
     f'--algorithm={", ".join(_PRIVATE_BY_EXAMPLE)}; got {{c.algorithm}}. '
     'Give one of them'),
    (lambda c: c.clips_updates() and c.weighting != 'uniform',
     '--dp_clip={c.dp_clip} requires --weighting=uniform, so that all clients '
     'have the same weight; got --weighting={c.weighting}'),
    # What reads or changes client updates.
    *((lambda c, is_used=is_used: is_used(c) and not (
        registry.method(c).sends_only_model),
       f'--{name}={{c.{name}}} requires clients that send their model and '
       'nothing else, not {name}; use one of {private}, without '
       '--aggregation=fednova or scaffold')
      for name, is_used in _OF_UPDATES.items()),
    *((lambda c, is_used=_OF_UPDATES[name]: c.clips_updates() and is_used(c),
       '--dp_clip={c.dp_clip} accounts for the mean of honest updates; remove '
       f'it or --{name}={{c.{name}}}')
      for name in ('aggregation', 'attack')),
    *((lambda c, name=name: c.clips_updates() and _is_changed(c, name),
       '--dp_clip={c.dp_clip} assumes that data do not decide who takes part, '
       f'and with --{name}={{c.{name}}} they do; remove one of them')
      for name in ('clock', 'clock_file')),
    *((lambda c, is_used=_OF_UPDATES[name]: c.asynchronous != 'none' and (
        is_used(c)),
       '--asynchronous={c.asynchronous} weighs updates by their staleness; '
       f'remove it or --{name}={{c.{name}}}')
      for name in ('aggregation', 'attack')),
    (lambda c: c.aggregation == 'secure_sum' and c.compress != 'none',
     '--aggregation=secure_sum sends masked integers, which cannot be '
     'compressed; remove it or --compress={c.compress}'),
    *((lambda c, name=name: c.compress_download and _is_changed(c, name),
       f'--{name}={{c.{name}}} keeps clients away from rounds, and with '
       '--compress_download each builds the model from the messages of all '
       'rounds; remove one of them')
      for name in ('participation', 'cohorts_file', 'cohort', 'asynchronous')),
    (lambda c: c.compress_download and c.dropout_rate and (
        c.dropout_stage == 'before_training'),
     '--compress_download needs clients that receive each message; with '
     '--dropout_rate={c.dropout_rate} give --dropout_stage=after_training'),
    (lambda c: c.attack != 'none' and not c.num_attackers(),
     '--attack={c.attack} needs a hostile client, got --attackers='
     '{c.attackers} of --num_clients={c.num_clients}; raise it'),
    # Evaluation.
    *((lambda c, name=name: getattr(c, name) and not c.validation_fraction,
       f'--{name} selects by the validation accuracy, never by the test '
       'accuracy, and needs --validation_fraction, such as 0.1; got '
       f'--{name}={{c.{name}}} without it')
      for name in ('keep_best', 'early_stopping')),
    (lambda c: c.keep_best and c.algorithm == 'solo',
     '--keep_best saves the global model, and --algorithm=solo has none; '
     'remove --keep_best'),
)


def _check_paths(config):
  for name in _PATHS:
    path = getattr(config, name)
    try:
      files.user_path(path, name)
      path.encode('utf-8')
    except UnicodeEncodeError as error:  # Orbax cannot write to such paths
      raise UserError(f'--{name}={path!r} is not valid UTF-8; name another '
                      'path') from error


def _check_combining(config, method):
  for name in registry.COMBINING:
    if not _is_changed(config, name) or name in method.flags:
      continue
    able = ', '.join(known for known, method in registry.METHODS.items()
                     if name in method.flags)
    remedy = f'remove it, or give --algorithm={able}'
    if config.has_user_algorithm():
      remedy = ('call moon_jax.with_proximal, with_fednova or '
                'with_control_variates in the factory')
    elif name == 'proximal_mu' and config.algorithm == 'fedprox':
      remedy = 'give --mu, the weight of its proximal term'
    raise UserError(f'--{name}={getattr(config, name)} is for --algorithm='
                    f'{able}; got {config.algorithm}: {remedy}')


def _check_needs(config, method):
  """Checks what a built-in method assumes, before data are loaded."""
  needs = registry.combined(config).needs
  if 'cohorts' in needs and config.misses_clients():
    raise UserError(
        f'--algorithm={config.algorithm} trains all clients in each round; got '
        f'--participation={config.participation} '
        f'--cohorts_file={config.cohorts_file!r} --cohort={config.cohort}. '
        'Remove them')
  flags = {name: needed for name, needed in needs.items()
           if name not in ('cohorts', 'num_clients')}
  given = {name: getattr(config, name) for name in flags}
  if flags != given:
    needed, got = (' '.join(f'--{name}={value}' for name, value in x.items())
                   for x in (flags, given))
    raise UserError(f'{registry.flags_of(config)} needs {needed}, '
                    f'{method.reason}; got {got}')


def _check_selection(config):
  """Calls a built-in selection; a user's is called when data are loaded."""
  if not is_user_code(config.cohort) and (
      select := registry.selection_of(config)):
    count = config.num_clients
    with errors.in_command(candidates='cohort_args=candidates'):
      selection.choose(select, selection.begin(count), config.cohort_size(),
                       np.ones(count, int), config.seed)


def _check_cohort(config):
  count, num_clients = config.participation, config.num_clients
  if not 0 < count <= 1:
    remedy = '--participation=1 samples all'
    if 1 < count <= num_clients:
      remedy = (f'for {count:g} of --num_clients={num_clients} give '
                f'--participation={count / num_clients:.12g}')
    raise UserError(
        f'--participation must be above 0 and at most 1 (the fraction of '
        f'clients sampled per round); got {count}. {remedy}')
  if config.cohort_size() < 1:
    enough = math.ceil(1e4 / num_clients) / 1e4
    raise UserError(
        f'--participation={count} of --num_clients={num_clients} samples no '
        f'client per round; raise --participation to {enough} or more')
