"""The configuration of a run: one frozen dataclass, one flag per field.

The help text of a flag is written here, once. `moon_jax.simulation.checks`
validates a configuration; `moon_jax.simulation.build` turns it into values.
"""

import dataclasses
import pathlib
import re
import typing
from typing import Any

DATASETS = ('digits', 'cifar10', 'cifar100', 'tiny_imagenet', 'mnist',
            'fashion_mnist', 'svhn', 'shakespeare', 'breast_cancer', 'npz')
ALGORITHMS = ('fedavg', 'fedprox', 'scaffold', 'moon', 'solo', 'fednova',
              'centralized')


def _flag(default, help_text, choices=None):
  """Returns a field of `Config` with its help and, if limited, its choices."""
  return dataclasses.field(
      default=default, metadata={'help': help_text, 'choices': choices})


@dataclasses.dataclass(frozen=True)
class Config:
  """The configuration of a run.

  The same `Config` and data set give the same numbers. Defaults are the
  CIFAR-10 setting of the MOON paper (Li, He and Song, CVPR 2021, section 4.1).
  `python -m moon_jax.train --help` describes each field.

  Example:
    >>> moon_jax.run(moon_jax.Config(dataset='digits', num_rounds=10))
  """

  dataset: str = _flag(
      'cifar10', f'Data set: {", ".join(DATASETS)}; or user-defined as '
      'MODULE:LOADER, a function of --data_dir that returns a dict of arrays '
      '(docs/user_data.md).')
  data_dir: str = _flag(
      '', 'Directory that holds the data set in any published form, or into '
      'which it is downloaded (cifar10, cifar100, tiny_imagenet); "tfds" '
      'prepares it with tensorflow-datasets and TensorFlow. For npz, the file. '
      'digits and breast_cancer need none.')
  partition: str = _flag(
      'dirichlet', 'How training examples are partitioned over clients: iid; '
      'by class (dirichlet; shards, with few classes per client); by size '
      '(quantity); iid with noise on inputs that increases from client to '
      "client (feature_noise); or by the data set's own clients (natural).",
      ('iid', 'dirichlet', 'shards', 'quantity', 'feature_noise', 'natural'))
  beta: float = _flag(
      0.5, 'Concentration of the dirichlet and quantity partitions; smaller '
      'values are more uneven.')
  shards_per_client: int = _flag(
      2, 'Shards of examples sorted by class per client, in the shards '
      'partition.')
  noise_std: float = _flag(
      0.1, 'Standard deviation of the noise on the inputs of the last client '
      'in the feature_noise partition, for images in 0..1 or normalized '
      'features. It increases linearly from 0 for the first client.')
  num_clients: int = _flag(
      10, 'Number of clients. The natural partition samples that many of the '
      "data set's clients.")
  participation: float = _flag(
      1.0, 'Fraction of the clients sampled per round.')
  cohorts_file: str = _flag(
      '', 'Text file with the clients of one round per line, numbered from 0, '
      'which replaces sampling; cohorts.txt of a run has this format.')
  dropout_rate: float = _flag(
      0.0, 'Probability that a sampled client fails in a round: the server '
      'does not receive its update.')
  dropout_stage: str = _flag(
      'before_training', 'When a client fails: before_training, so that its '
      'state does not change, or after_training, so that it does.',
      ('before_training', 'after_training'))
  algorithm: str = _flag(
      'moon', f'Federated algorithm: {", ".join(ALGORITHMS)}; or user-defined '
      'as MODULE:FACTORY, a function of the configuration that returns a '
      'moon_jax.Algorithm (docs/user_algorithm.md).')
  algorithm_args: str = _flag(
      '', 'Arguments of a user-defined factory: comma-separated name=value.')
  mu: float = _flag(
      -1.0, 'Weight of the contrastive loss (moon) or of the proximal term '
      "(fedprox); -1 uses the algorithm's default, 5 and 0.01.")
  contrastive: str = _flag(
      'model', "The term that mu weighs in moon: the paper's model-contrastive "
      'loss (model), or the l2 distance of its ablation (l2).',
      ('model', 'l2'))
  temperature: float = _flag(
      0.5, 'Temperature tau of the contrastive loss (moon).')
  num_negatives: int = _flag(
      1, 'Number of previous local models used as negatives, k (moon).')
  server_optimizer: str = _flag(
      'sgd', 'Server optimizer; sgd with rate 1 and no momentum takes the '
      'plain average. adam, yogi and adagrad are FedAdam, FedYogi and '
      'FedAdagrad.', ('sgd', 'adam', 'yogi', 'adagrad'))
  server_learning_rate: float = _flag(
      1.0, 'Server learning rate; 0.01 is usual for adaptive optimizers.')
  server_momentum: float = _flag(
      0.0, 'Momentum beta of the server optimizer sgd: FedAvgM.')
  server_momentum_form: str = _flag(
      'hsu', 'v = beta v + delta (hsu), or v = beta v + (1 - beta) delta (ema) '
      'as in the code released with MOON.', ('hsu', 'ema'))
  weighting: str = _flag(
      'examples', "Weight of a client's model in the average: its number of "
      'examples, or uniform.', ('examples', 'uniform'))
  dp_clip: float = _flag(
      0.0, "Bound on the norm of a client's update, for differential privacy "
      '(DP-FedAvg, with --weighting=uniform); 0 disables it.')
  dp_noise_multiplier: float = _flag(
      0.0, 'Standard deviation of the Gaussian noise on the sum of updates, as '
      'a multiple of --dp_clip.')
  dp_delta: float = _flag(
      1e-5, 'The delta at which the privacy loss epsilon is reported.')
  model: str = _flag(
      'simple_cnn', 'Network: simple_cnn, resnet18 and resnet50 for images; '
      'mlp for features or images; char_lstm for tokens.',
      ('simple_cnn', 'resnet18', 'resnet50', 'mlp', 'char_lstm'))
  norm: str = _flag(
      'batch', 'Normalization in residual networks: batch, whose running '
      'statistics are averaged with the parameters, or group.',
      ('batch', 'group'))
  projection_head: bool = _flag(
      True, 'Whether a two-layer projection precedes the output layer.')
  projection_dim: int = _flag(256, 'Length of the projection z.')
  num_rounds: int = _flag(100, 'Number of communication rounds.')
  local_epochs: int = _flag(10, "Epochs over a client's data per round.")
  batch_size: int = _flag(64, 'Examples per local step.')
  optimizer: str = _flag(
      'sgd', 'Local optimizer, reset in each round.',
      ('sgd', 'adam', 'amsgrad'))
  learning_rate: float = _flag(0.01, 'Local learning rate.')
  momentum: float = _flag(0.9, 'Momentum of sgd.')
  weight_decay: float = _flag(
      1e-5, 'Weight decay, added to the gradient (coupled, as in PyTorch).')
  augment: bool = _flag(
      True, "Whether training images are augmented, in the data set's usual "
      'way (cifar10: reflect-pad 4, random crop, flip; cifar100: zero-pad 4, '
      'random crop, flip, rotation; user-defined: as '
      'selected by the data set; others: none).')
  shuffle: bool = _flag(
      True, "Whether each client's examples are reshuffled in each local "
      'epoch. With --noshuffle each epoch has the same batches, sorted by '
      'class, as a data loader without shuffling reads them from a partition '
      'made class by class.')
  seed: int = _flag(
      0, 'Seed of the partition, cohorts, initial model, shuffles and '
      'augmentation.')
  partition_seed: int = _flag(
      -1, 'Seed of the partition only, to compare seeds on one partition; -1 '
      'uses --seed.')
  workdir: str = _flag(
      '', 'Directory of the results; by default runs/DATASET-ALGORITHM-HASH, '
      'a separate directory for each configuration.')
  eval_every: int = _flag(
      1, 'Rounds between evaluations on the test set; the last round is always '
      'evaluated.')
  client_eval_every: int = _flag(
      0, 'Rounds between evaluations of the local models and of the global '
      "model, on each client's own examples and on the test set; 0 disables "
      'them.')
  eval_examples: int = _flag(
      0, 'Number of test examples used by evaluations: a random subset, the '
      'same for all seeds, methods, rounds and devices; 0 uses all.')
  checkpoint_every: int = _flag(
      10, 'Rounds between checkpoints; the last round is always saved. 0 '
      'saves none.')
  checkpoint_keep: int = _flag(
      2, 'Number of newest checkpoints to keep; if the newest is damaged, the '
      'run resumes from the previous one.')
  checkpoint_keep_every: int = _flag(
      0, 'Rounds between checkpoints that are kept permanently, a multiple of '
      '--checkpoint_every; 0 keeps only the newest.')
  on_nan: str = _flag(
      'stop', 'Action if the training of a client ends in NaN or infinity: '
      'stop the run, or skip_client to leave the client out of the round. A '
      'global model that is not finite stops any run.',
      ('stop', 'skip_client'))
  check_determinism: bool = _flag(
      False, 'Whether to train the first two rounds twice, compiling each '
      'time, and to continue only if all bits agree.')
  lanes: int = _flag(
      0, 'Clients trained side by side, on all devices together (a CPU core is '
      'a device); 0 chooses. Affects speed, and results only through rounding.')
  shard_data: bool = _flag(
      False, 'Whether a device holds only the training examples of the clients '
      'that it trains in a round, moved to it in each round, for data sets '
      'that do not fit. Changes no result; CPU cores share the examples '
      'anyway.')
  dtype: str = _flag(
      'float32', 'Type in which layers compute and return activations; '
      'parameters are float32.', ('float32', 'bfloat16'))
  precision: str = _flag(
      'highest', 'Precision of float32 matrix multiplications and '
      'convolutions: highest (float32); or, on tensor cores of GPUs, with '
      'inputs split into two TF32 numbers (tf32x3, as accurate as float32), '
      "rounded to TF32 (tf32, PyTorch's default for convolutions) or rounded "
      'to bfloat16. Accumulation is float32. CPUs emulate them, slowly.',
      ('highest', 'tf32x3', 'tf32', 'bfloat16'))
  convolution: str = _flag(
      'im2col', 'How residual networks compute convolutions: as matrix '
      "multiplications (im2col), or by XLA's own convolution (native), which "
      'uses cuDNN on NVIDIA GPUs. Affects speed and memory, and results only '
      'through rounding.',
      ('im2col', 'native'))

  def to_dict(self) -> dict[str, Any]:
    """Returns the fields by name, converted to their type (mu=1 to 1.0)."""
    return {name: kind(getattr(self, name))
            for name, kind in typing.get_type_hints(type(self)).items()}

  def command(self) -> str:
    """Returns the command of this run, without directories of this machine."""
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

  def has_user_algorithm(self) -> bool:
    """Returns whether the algorithm is user-defined, MODULE:FACTORY."""
    return is_user_code(self.algorithm)

  def split_seed(self) -> int:
    """Returns the seed of the partition."""
    return self.seed if self.partition_seed < 0 else self.partition_seed

  def cohort_size(self) -> int:
    """Returns the clients per round, int(clients * fraction) as published."""
    return int(self.num_clients * self.participation)


def is_user_code(name: str) -> bool:
  """Returns whether a name denotes user-defined code, MODULE:FUNCTION."""
  return bool(re.fullmatch(r'\w+(\.\w+)*:\w+', name))
