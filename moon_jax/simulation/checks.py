"""The limits of a configuration, told before anything compiles."""

import dataclasses
import math
import pathlib

from moon_jax.config import ALGORITHMS
from moon_jax.config import Config
from moon_jax.config import DATASETS
from moon_jax.config import is_user_code
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

_TINY, _HUGE = 1e-30, 1e30  # what float32 arithmetic can take
_MOST = 10**6
_MAX_SEED = 2**32 - 1  # numpy's legacy generator takes 32 bits

# The weight mu that an algorithm takes where none is given.
_DEFAULT_MU = {'moon': 5.0, 'fedprox': 0.01}


def validate(config: Config) -> Config:
  """Returns `config`, where it can be run, with what it leaves open filled in.

  mu of -1 becomes the algorithm's; centralized is one client with all examples.

  Raises:
    UserError: naming the first flag at fault, its value and a remedy.
  """
  for field in dataclasses.fields(config):
    value, choices = getattr(config, field.name), field.metadata['choices']
    if choices and value not in choices:
      raise UserError(
          f'--{field.name} must be one of {", ".join(choices)}; got {value!r}')
    if field.type is float and value and not _TINY <= abs(value) <= _HUGE:
      raise UserError(
          f'--{field.name} must be 0 or between {_TINY} and {_HUGE} in size; '
          f'got {value}. The default is --{field.name}={field.default}')
    if field.type is int and 'seed' not in field.name and value > _MOST:
      raise UserError(f'--{field.name} must be at most {_MOST}; got {value}. '
                      f'The default is --{field.name}={field.default}')

  def at_least(name, low, hint):
    if getattr(config, name) < low:
      raise UserError(
          f'--{name} must be at least {low}; got {getattr(config, name)}. '
          f'{hint}')

  def above_zero(name, hint):
    if getattr(config, name) <= 0:
      raise UserError(
          f'--{name} must be above 0; got {getattr(config, name)}. {hint}')

  for name, known, own in (('algorithm', ALGORITHMS, 'MODULE:FACTORY'),
                           ('dataset', DATASETS, 'MODULE:LOADER')):
    value = getattr(config, name)
    if value not in known and not is_user_code(value):
      raise UserError(f'--{name} must be one of {", ".join(known)}, or your '
                      f'own as {own}; got {value!r}')
  at_least('num_clients', 1, 'The paper uses --num_clients=10.')
  at_least('noise_std', 0, 'NIID-Bench uses --noise_std=0.1.')
  at_least('shards_per_client', 1, 'McMahan et al. use 2.')
  at_least('num_negatives', 1, 'The paper uses --num_negatives=1; '
           '--algorithm=fedavg has no contrastive loss.')
  at_least('projection_dim', 1, 'The paper uses --projection_dim=256; '
           '--noprojection_head leaves the head out.')
  at_least('num_rounds', 1, 'The paper uses --num_rounds=100.')
  at_least('local_epochs', 1, 'The paper uses --local_epochs=10.')
  at_least('batch_size', 1, 'The paper uses --batch_size=64.')
  if config.mu < 0 and config.mu != -1:
    raise UserError(f'--mu must be at least 0, or -1; got {config.mu}. The '
                    'paper tries --mu=0.1, 1, 5 and 10.')
  at_least('weight_decay', 0, 'The paper uses --weight_decay=1e-5.')
  at_least('eval_every', 1, '--eval_every=1 evaluates after each round.')
  at_least('client_eval_every', 0, '--client_eval_every=0 makes none.')
  at_least('eval_examples', 0, '--eval_examples=0 takes the whole test set.')
  at_least('checkpoint_every', 0, '--checkpoint_every=0 saves none.')
  at_least('checkpoint_keep', 1, '--checkpoint_keep=2 survives a damaged one.')
  at_least('checkpoint_keep_every', 0, '0 keeps the newest alone.')
  at_least('lanes', 0, '--lanes=0 chooses by itself.')
  at_least('seed', 0, f'Seeds run from 0 to {_MAX_SEED}.')
  at_least('partition_seed', -1, '-1 takes --seed.')
  for name in ('seed', 'partition_seed'):
    if getattr(config, name) > _MAX_SEED:
      raise UserError(f'--{name} must be at most {_MAX_SEED}; got '
                      f'{getattr(config, name)}. --{name}=0 is usual.')
  if not 0 < config.dp_delta < 1:
    raise UserError(f'--dp_delta must be above 0 and below 1; got '
                    f'{config.dp_delta}. Below 1 / num_clients is usual')
  if not 0 <= config.dropout_rate < 1:
    raise UserError(f'--dropout_rate must be at least 0 and below 1; got '
                    f'{config.dropout_rate}. --dropout_rate=0 loses no client')
  above_zero('beta', 'The paper uses --beta=0.5; smaller is more uneven.')
  above_zero('temperature', 'The paper uses --temperature=0.5.')
  above_zero('server_learning_rate', '--server_learning_rate=1 is FedAvg.')
  above_zero('learning_rate', 'The paper uses --learning_rate=0.01.')
  for name in ('momentum', 'server_momentum'):
    if not 0 <= getattr(config, name) < 1:
      raise UserError(f'--{name} must be at least 0 and below 1; got '
                      f'{getattr(config, name)}. --{name}=0.9 is usual.')
  for name in ('data_dir', 'workdir', 'cohorts_file'):
    try:
      pathlib.Path(getattr(config, name)).expanduser()
    except RuntimeError as error:
      raise UserError(f'--{name}={getattr(config, name)}: there is no such '
                      'home directory; write the path out') from error
    try:
      getattr(config, name).encode('utf-8')
    except UnicodeEncodeError as error:  # which Orbax cannot write to
      raise UserError(f'--{name}={getattr(config, name)!r} is not in UTF-8; '
                      'name another path') from error
  _check_combinations(config)
  _check_arithmetic(config)
  _check_privacy(config)
  if not 0 < config.participation <= 1:
    raise UserError(
        f'--participation must be above 0 and at most 1 (the fraction of '
        f'clients sampled a round); got {config.participation}. '
        '--participation=1 takes all.')
  if config.cohort_size() < 1:
    enough = math.ceil(1e4 / config.num_clients) / 1e4
    raise UserError(
        f'--participation={config.participation} of --num_clients='
        f'{config.num_clients} samples no client a round; raise '
        f'--participation to {enough} or more')
  if config.mu == -1:
    config = dataclasses.replace(
        config, mu=_DEFAULT_MU.get(config.algorithm, 0.0))
  if config.algorithm == 'centralized' and config.partition in (
      'natural', 'feature_noise'):
    raise UserError(
        '--algorithm=centralized trains on all examples as they are; leave out '
        f'--partition={config.partition}, or give --partition=iid')
  if config.algorithm == 'centralized':
    config = dataclasses.replace(
        config, num_clients=1, participation=1.0, partition='iid')
  return config


def validate_dataset(config: Config, dataset: Dataset) -> None:
  """Checks what depends on the data set.

  Raises:
    UserError: naming the flag at fault, its value and a remedy.
  """
  num_test = len(dataset.test_labels)
  if config.eval_examples > num_test:
    raise UserError(
        f'--eval_examples must be at most the {num_test} test examples of '
        f'--dataset={config.dataset}; got {config.eval_examples}. '
        '--eval_examples=0 takes all of them')
  for name in 'train_labels', 'test_labels':
    labels = getattr(dataset, name)
    if len(labels) and not 0 <= labels.min() <= labels.max() < (
        dataset.num_classes):
      raise UserError(
          f'--dataset={config.dataset}: {name} must be 0 to '
          f'{dataset.num_classes - 1}, one for each of its class_names; got '
          f'{labels.min()} to {labels.max()}')


def _check_combinations(config: Config) -> None:
  """What no flag alone gets wrong."""
  if config.checkpoint_every and (
      config.checkpoint_keep_every % config.checkpoint_every):
    raise UserError(
        f'--checkpoint_keep_every={config.checkpoint_keep_every} must be a '
        f'multiple of --checkpoint_every={config.checkpoint_every}')
  plain_sgd = config.optimizer == 'sgd' and config.momentum == 0
  if config.algorithm == 'scaffold' and not plain_sgd:
    raise UserError(
        '--algorithm=scaffold needs --optimizer=sgd --momentum=0, on which its '
        f'control variates rest; got --optimizer={config.optimizer} '
        f'--momentum={config.momentum}')
  if config.algorithm == 'fednova' and config.optimizer != 'sgd':
    raise UserError(
        '--algorithm=fednova needs --optimizer=sgd, whose steps it counts; '
        f'got --optimizer={config.optimizer}')
  if config.algorithm_args and not config.has_user_algorithm():
    raise UserError(
        f'--algorithm_args={config.algorithm_args} are for an algorithm of '
        f'your own; --algorithm={config.algorithm} takes flags')
  if config.cohorts_file and config.participation != 1:
    raise UserError(
        f'--cohorts_file={config.cohorts_file} says who takes part; leave out '
        f'--participation={config.participation}')
  if config.cohorts_file and config.algorithm == 'centralized':
    raise UserError('--algorithm=centralized has one client; leave out '
                    f'--cohorts_file={config.cohorts_file}')
  if config.server_momentum and config.server_optimizer != 'sgd':
    raise UserError(
        f'--server_momentum={config.server_momentum} is for '
        f'--server_optimizer=sgd; got {config.server_optimizer}. Leave one out')
  if config.algorithm == 'solo' and (
      config.server_optimizer != 'sgd' or config.server_momentum):
    raise UserError(
        f'--algorithm=solo has no server to step; got --server_optimizer='
        f'{config.server_optimizer} --server_momentum='
        f'{config.server_momentum}. Leave them out')


def _check_arithmetic(config: Config) -> None:
  """Refuses combinations of precision, dtype, model and convolution."""
  precision = config.precision
  if precision == 'highest':
    return
  if config.dtype != 'float32':
    raise UserError(
        f'--precision={precision} is for --dtype=float32; got --dtype='
        f'{config.dtype}. Leave one of them out')
  if config.model == 'char_lstm':
    raise UserError(
        f'--model=char_lstm computes at --precision=highest only; got '
        f'{precision}. Remove --precision, or give --dtype=bfloat16')
  if config.convolution == 'native' and precision != 'tf32':
    raise UserError(
        '--convolution=native computes at --precision=highest or tf32; got '
        f'{precision}. Give --convolution=im2col, or --dtype=bfloat16 without '
        '--precision')


def _check_privacy(config: Config) -> None:
  """Differential privacy needs bounded, equally weighted updates alone."""
  for name in ('dp_clip', 'dp_noise_multiplier'):
    value = getattr(config, name)
    if value and not 1e-6 <= value <= 1e6:
      raise UserError(f'--{name} must be 0 or between 1e-06 and 1e+06; got '
                      f'{value}. --{name}=1 is usual')
  if not config.dp_clip:
    if config.dp_noise_multiplier:
      raise UserError(
          f'--dp_noise_multiplier={config.dp_noise_multiplier} is a multiple '
          'of --dp_clip, which is 0; give --dp_clip, such as 1')
    return
  if config.weighting != 'uniform':
    raise UserError(
        f'--dp_clip={config.dp_clip} bounds what one client changes where all '
        f'weigh the same; got --weighting={config.weighting}. Give '
        '--weighting=uniform')
  if config.algorithm in ('scaffold', 'fednova', 'solo'):
    raise UserError(
        f'--dp_clip={config.dp_clip} protects clients that send their model '
        f'and nothing else, not --algorithm={config.algorithm}; take fedavg, '
        'fedprox or moon')
