"""Validates configurations before anything compiles."""

import dataclasses
import math
import pathlib

from moon_jax.algorithms import registry
from moon_jax.config import Config
from moon_jax.config import is_user_code
from moon_jax.config import LOGGERS
from moon_jax.config import NAMES
from moon_jax.config import suggest
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError
from moon_jax.simulation import evaluation_checks
from moon_jax.simulation import limits
from moon_jax.simulation import method_checks
from moon_jax.simulation import split_checks


def validate(config: Config) -> Config:
  """Returns `config` with open settings resolved, if it can be run.

  A mu of -1 becomes the method's default; centralized becomes one client with
  all examples.

  Raises:
    UserError: naming the first invalid flag, its value and a remedy.
  """
  limits.check(config)
  for name in NAMES:
    suggest.check_names(name, getattr(config, name))
  for name in config.logger_names():
    if name not in LOGGERS and not is_user_code(name):
      raise UserError(f'--loggers must be of {", ".join(LOGGERS)}, or '
                      f'user-defined as MODULE:CLASS; got {name!r}'
                      f'{suggest.value("loggers", name, LOGGERS)}')
  if config.mu < 0 and config.mu != -1:
    raise UserError(f'--mu must be at least 0, or -1; got {config.mu}. The '
                    'paper tries --mu=0.1, 1, 5 and 10.')
  if not 0 < config.dp_delta < 1:
    raise UserError(f'--dp_delta must be above 0 and below 1; got '
                    f'{config.dp_delta}. Below 1 / num_clients is usual')
  _check_paths(config)
  split_checks.check(config)
  method_checks.check(config)
  _check_combinations(config)
  _check_arithmetic(config)
  method_checks.check_privacy(config)
  _check_cohort(config)
  evaluation_checks.check_config(config)
  if config.mu == -1:
    config = dataclasses.replace(config, mu=registry.default_mu(config))
  if config.algorithm == 'centralized':
    if config.partition in ('natural', 'feature_noise'):
      raise UserError(
          '--algorithm=centralized trains on all examples unchanged; remove '
          f'--partition={config.partition}, or give --partition=iid')
    config = dataclasses.replace(
        config, num_clients=1, participation=1.0, partition='iid')
  return config


def validate_dataset(config: Config, dataset: Dataset) -> None:
  """Checks what depends on the data set.

  Raises:
    UserError: naming the invalid flag, its value and a remedy.
  """
  num_test = len(dataset.test_labels)
  if config.eval_examples > num_test:
    raise UserError(
        f'--eval_examples must be at most the {num_test} test examples of '
        f'--dataset={config.dataset}; got {config.eval_examples}. '
        '--eval_examples=0 uses all of them')
  check_labels(dataset, f'--dataset={config.dataset}')


def check_labels(dataset: Dataset, name: str) -> None:
  """Checks that labels are classes of the data set.

  Raises:
    UserError: if a label is invalid; the message begins with `name`.
  """
  for field in 'train_labels', 'test_labels':
    labels = getattr(dataset, field)
    if len(labels) and not 0 <= labels.min() <= labels.max() < (
        dataset.num_classes):
      raise UserError(
          f'{name}: {field} must be 0 to {dataset.num_classes - 1}, one for '
          f'each of its class_names; got {labels.min()} to {labels.max()}')


def _check_paths(config):
  for name in ('data_dir', 'workdir', 'cohorts_file', 'partition_file',
               'init_from'):
    path = getattr(config, name)
    try:
      pathlib.Path(path).expanduser()
    except RuntimeError as error:
      raise UserError(f'--{name}={path}: there is no such home directory; '
                      'write the full path') from error
    try:
      path.encode('utf-8')
    except UnicodeEncodeError as error:  # Orbax cannot write to such paths
      raise UserError(f'--{name}={path!r} is not valid UTF-8; name another '
                      'path') from error


def _check_combinations(config):
  """Checks flags that exclude one another."""
  if config.checkpoint_every and (
      config.checkpoint_keep_every % config.checkpoint_every):
    raise UserError(
        f'--checkpoint_keep_every={config.checkpoint_keep_every} must be a '
        f'multiple of --checkpoint_every={config.checkpoint_every}')
  if config.client_test_fraction and not config.client_eval_every:
    raise UserError(
        f'--client_test_fraction={config.client_test_fraction} holds out '
        'examples for --client_eval_every, which is 0; give '
        f'--client_eval_every={config.num_rounds} to evaluate clients after '
        'the last round, or fewer rounds to evaluate them more often')
  is_step = config.learning_rate_schedule == 'step'
  if is_step and not config.decay_rounds:
    raise UserError(
        '--learning_rate_schedule=step needs --decay_rounds, the rounds '
        'between decays, at least 1; got 0. --decay_rounds=30 is usual')
  for name in ('learning_rate_decay', 'decay_rounds'):
    if not is_step and getattr(config, name) != getattr(Config, name):
      raise UserError(
          f'--{name}={getattr(config, name)} is for --learning_rate_schedule='
          f'step; got {config.learning_rate_schedule}. Remove one of them')
  if config.augmentation_draws == 'recurring' and not config.augment:
    raise UserError('--augmentation_draws=recurring needs --augment; got '
                    '--noaugment. Remove one of them')
  if config.warmup_rounds >= config.num_rounds:
    raise UserError(
        f'--warmup_rounds={config.warmup_rounds} must be below --num_rounds='
        f'{config.num_rounds}; lower it')
  if config.cohorts_file and config.participation != 1:
    raise UserError(
        f'--cohorts_file={config.cohorts_file} lists the cohorts; remove '
        f'--participation={config.participation}')
  if config.cohorts_file and config.algorithm == 'centralized':
    raise UserError('--algorithm=centralized has one client; remove '
                    f'--cohorts_file={config.cohorts_file}')
  if config.server_momentum and config.server_optimizer != 'sgd':
    raise UserError(
        f'--server_momentum={config.server_momentum} is for '
        f'--server_optimizer=sgd; got {config.server_optimizer}. Remove one of '
        'them')


def _check_arithmetic(config):
  """Checks combinations of precision, dtype, model and convolution."""
  precision = config.precision
  if config.model_args and not config.has_user_model():
    raise UserError(
        f'--model_args={config.model_args} is for a user-defined network; '
        f'--model={config.model} takes flags')
  if precision == 'highest' or config.has_user_model():
    return
  if config.dtype != 'float32':
    raise UserError(
        f'--precision={precision} is for --dtype=float32; got --dtype='
        f'{config.dtype}. Remove one of them')
  if config.model == 'char_lstm':
    raise UserError(
        f'--model=char_lstm computes at --precision=highest only; got '
        f'{precision}. Remove --precision, or give --dtype=bfloat16')
  if config.convolution == 'native' and precision != 'tf32':
    raise UserError(
        '--convolution=native computes at --precision=highest or tf32; got '
        f'{precision}. Give --convolution=im2col, or --dtype=bfloat16 without '
        '--precision')


def _check_cohort(config):
  if not 0 < config.participation <= 1:
    clients = config.participation
    remedy = (f'for {clients:g} of --num_clients={config.num_clients} give '
              f'--participation={clients / config.num_clients:.4g}'
              if 1 < clients <= config.num_clients
              else '--participation=1 samples all')
    raise UserError(
        f'--participation must be above 0 and at most 1 (the fraction of '
        f'clients sampled per round); got {clients}. {remedy}')
  if config.cohort_size() < 1:
    enough = math.ceil(1e4 / config.num_clients) / 1e4
    raise UserError(
        f'--participation={config.participation} of --num_clients='
        f'{config.num_clients} samples no client per round; raise '
        f'--participation to {enough} or more')
