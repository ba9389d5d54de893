"""What a run is: one frozen dataclass, checked before anything compiles.

Every field is a command-line flag of the same name (`moon_jax.train`), and its
help text is written here, once.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
from typing import Any

from moon_jax.errors import UserError

_TINY, _HUGE = 1e-30, 1e30  # what float32 arithmetic can take
_MOST = 10**6
_MAX_SEED = 2**32 - 1  # numpy's legacy generator takes 32 bits

DATASETS = ('digits', 'cifar10', 'cifar100', 'tiny_imagenet', 'mnist',
            'fashion_mnist', 'svhn', 'shakespeare', 'breast_cancer', 'npz')
ALGORITHMS = ('fedavg', 'fedprox', 'scaffold', 'moon', 'solo', 'fednova',
              'centralized')


def _flag(default, help_text, choices=None):
  """A field of `Config`: its default, its help and, for words, its choices."""
  return dataclasses.field(
      default=default, metadata={'help': help_text, 'choices': choices})


@dataclasses.dataclass(frozen=True)
class Config:
  """A run. The same `Config` and data set give the same numbers.

  The defaults are the CIFAR-10 setting of the MOON paper (Li, He, Song, CVPR
  2021, section 4.1).
  """

  dataset: str = _flag(
      'cifar10', f'Data set: {", ".join(DATASETS)}; or your own as '
      'MODULE:LOADER, a function of --data_dir that returns arrays by the '
      'names that npz files have (docs/own_data.md).')
  data_dir: str = _flag(
      '', 'Directory that holds the data set in any published form, or into '
      'which it is downloaded; "tfds" prepares it with tensorflow-datasets and '
      'TensorFlow. The file of npz; digits and breast_cancer need none.')
  partition: str = _flag(
      'dirichlet', 'How the training set is split over clients: iid; by '
      'classes (dirichlet; shards, a few classes each); by sizes (quantity); '
      'iid, with more noise on the inputs of each next client '
      "(feature_noise); or by the data set's own clients (natural).",
      ('iid', 'dirichlet', 'shards', 'quantity', 'feature_noise', 'natural'))
  beta: float = _flag(
      0.5, 'Concentration of the dirichlet and quantity partitions; smaller is '
      'more uneven.')
  shards_per_client: int = _flag(
      2, 'Shards of examples sorted by class that each client has, in the '
      'shards partition.')
  noise_std: float = _flag(
      0.1, 'Standard deviation of the noise on the normalised inputs of the '
      'last client of the feature_noise partition; client i of N has i / N of '
      'it.')
  num_clients: int = _flag(
      10, "Number of clients; so many of the data set's own are drawn in the "
      'natural partition.')
  participation: float = _flag(
      1.0, 'Fraction of the clients sampled each round.')
  cohorts_file: str = _flag(
      '', 'Text file with the clients of a round on each line, from 0, in the '
      'place of sampling; cohorts.txt of a run is one.')
  dropout_rate: float = _flag(
      0.0, 'Chance that a sampled client fails in a round: the server never '
      'receives what it would have sent.')
  dropout_stage: str = _flag(
      'before_training', 'When a client fails: before training, so that it '
      'keeps its state, or after_training, with its state moved on.',
      ('before_training', 'after_training'))
  algorithm: str = _flag(
      'moon', f'Federated algorithm: {", ".join(ALGORITHMS)}; or your own as '
      'MODULE:FACTORY, a function of the configuration that returns a '
      'moon_jax.algorithms.base.Algorithm.')
  algorithm_args: str = _flag(
      '', 'Arguments of your own factory: name=value, apart by commas.')
  mu: float = _flag(
      -1.0, 'Weight of the contrastive loss (moon) or of the proximal term '
      "(fedprox); -1 takes the algorithm's own, 5 and 0.01.")
  contrastive: str = _flag(
      'model', "The term that mu weighs in moon: the paper's model-contrastive "
      'loss, or the l2 distance of its ablation.', ('model', 'l2'))
  temperature: float = _flag(
      0.5, 'Temperature tau of the contrastive loss (moon).')
  num_negatives: int = _flag(
      1, 'Previous local models that serve as negatives, k (moon).')
  server_optimizer: str = _flag(
      'sgd', "The server's optimizer; sgd at rate 1 without momentum takes the "
      'average as it is. adam, yogi and adagrad are FedAdam, FedYogi and '
      'FedAdagrad.', ('sgd', 'adam', 'yogi', 'adagrad'))
  server_learning_rate: float = _flag(
      1.0, "The server's learning rate; 0.01 is usual for adaptive ones.")
  server_momentum: float = _flag(
      0.0, "Momentum of the server's sgd, beta: FedAvgM.")
  server_momentum_form: str = _flag(
      'hsu', 'v = beta v + delta (hsu), or v = beta v + (1 - beta) delta, as '
      'in the code released with MOON (ema).', ('hsu', 'ema'))
  weighting: str = _flag(
      'examples', "What a client's model weighs in the average: its examples, "
      'or the same for all.', ('examples', 'uniform'))
  dp_clip: float = _flag(
      0.0, "Bound on the norm of a client's update, for differential privacy "
      '(DP-FedAvg, with --weighting=uniform); 0 clips nothing.')
  dp_noise_multiplier: float = _flag(
      0.0, 'Standard deviation of the Gaussian noise on the sum of the '
      'updates, as a multiple of --dp_clip.')
  dp_delta: float = _flag(
      1e-5, 'The delta at which the privacy spent, epsilon, is told.')
  model: str = _flag(
      'simple_cnn', 'Network: simple_cnn, resnet18 and resnet50 take images; '
      'mlp features or images; char_lstm tokens.',
      ('simple_cnn', 'resnet18', 'resnet50', 'mlp', 'char_lstm'))
  norm: str = _flag(
      'batch', 'Normalisation in residual networks: batch, whose running '
      'statistics are averaged with the parameters, or group.',
      ('batch', 'group'))
  projection_head: bool = _flag(
      True, 'Whether a two-layer projection stands before the output layer.')
  projection_dim: int = _flag(256, 'Length of the projection z.')
  num_rounds: int = _flag(100, 'Communication rounds.')
  local_epochs: int = _flag(10, "Epochs over a client's data each round.")
  batch_size: int = _flag(64, 'Examples a local step.')
  optimizer: str = _flag(
      'sgd', 'Local optimizer, restarted each round.',
      ('sgd', 'adam', 'amsgrad'))
  learning_rate: float = _flag(0.01, 'Local learning rate.')
  momentum: float = _flag(0.9, 'Momentum of sgd.')
  weight_decay: float = _flag(
      1e-5, 'Weight decay, added to the gradient (coupled, as in PyTorch).')
  augment: bool = _flag(
      True, "Whether training images are augmented, in the data set's usual "
      'way (cifar10: reflect-pad 4, random crop, flip; cifar100: zero-pad 4, '
      'random crop, flip, rotation; others: none).')
  seed: int = _flag(
      0, 'Seed of the partition, the cohorts, the initial model, the shuffles '
      'and the augmentation.')
  partition_seed: int = _flag(
      -1, 'Seed of the partition alone, to compare seeds on one split of the '
      'data; -1 takes --seed.')
  workdir: str = _flag(
      '', 'Directory of the results; by default runs/DATASET-ALGORITHM-HASH, '
      'a directory of its own for every configuration.')
  eval_every: int = _flag(
      1, 'Rounds between evaluations on the whole test set; the last round is '
      'always evaluated.')
  client_eval_every: int = _flag(
      0, 'Rounds between evaluations of every local model that trained, and of '
      "the global model, on each client's own examples and on the test set; "
      '0 makes none.')
  checkpoint_every: int = _flag(
      10, 'Rounds between checkpoints; the last round is always saved. '
      '0 saves none.')
  lanes: int = _flag(
      0, 'Clients trained side by side; 0 chooses. Changes speed, and results '
      'only by rounding.')
  dtype: str = _flag(
      'float32', 'Type of the arithmetic; parameters stay float32.',
      ('float32', 'bfloat16'))

  def to_dict(self) -> dict[str, Any]:
    """The fields by name, each of its own type (mu=1 and mu=1.0 are one)."""
    return {field.name: field.type(getattr(self, field.name))
            for field in dataclasses.fields(self)}

  def command(self) -> str:
    """The command that makes this run, without this machine's paths."""
    words = ['python -m moon_jax.train']
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value == field.default or field.name == 'workdir':
        continue
      if field.name == 'data_dir':
        value = 'DATA_DIR'
      if field.name == 'cohorts_file':
        value = pathlib.Path(value).name
      if field.type is bool:
        words.append(f'--{field.name}' if value else f'--no{field.name}')
      else:
        words.append(f'--{field.name}={value}')
    return ' '.join(words)

  def fingerprint(self) -> str:
    """Eight hexadecimal digits that differ where results can differ."""
    fields = {k: v for k, v in self.to_dict().items() if k not in FREE_FIELDS}
    text = json.dumps(fields, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]

  def is_custom(self) -> bool:
    """Whether the algorithm is the user's own, MODULE:FACTORY."""
    return is_own(self.algorithm)

  def split_seed(self) -> int:
    """The seed of the partition."""
    return self.seed if self.partition_seed < 0 else self.partition_seed

  def cohort_size(self) -> int:
    """Clients sampled a round, the published code's int(clients * fraction)."""
    return int(self.num_clients * self.participation)


def is_own(name: str) -> bool:
  """Whether a name is that of the user's own code, MODULE:FUNCTION."""
  return bool(re.fullmatch(r'\w+(\.\w+)*:\w+', name))


# Fields that say where and how fast, not what: they may differ on resuming. The
# number of lanes changes rounding, never the random numbers a client sees; of
# the list of cohorts the content counts.
FREE_FIELDS = (
    'data_dir', 'workdir', 'checkpoint_every', 'lanes', 'cohorts_file')


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
    if value not in known and not is_own(value):
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
  at_least('checkpoint_every', 0, '--checkpoint_every=0 saves none.')
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
  _check_combinations(config)
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
  if config.algorithm == 'centralized':
    config = dataclasses.replace(
        config, num_clients=1, participation=1.0, partition='iid')
  return config


def _check_combinations(config: Config) -> None:
  """What no flag alone gets wrong."""
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
  if config.algorithm_args and not config.is_custom():
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
