"""What a run is: one frozen dataclass (limits: `moon_jax.simulation.checks`).

Every field is a command-line flag of the same name (`moon_jax.train`), and its
help text is written here, once.
"""

import dataclasses
import pathlib
import re
from typing import Any

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
      'names that npz files have (docs/user_data.md).')
  data_dir: str = _flag(
      '', 'Directory that holds the data set in any published form, or into '
      'which it is downloaded (cifar10, cifar100, tiny_imagenet); "tfds" '
      'prepares it with tensorflow-datasets and TensorFlow. The file of npz; '
      'digits and breast_cancer need none.')
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
      0.1, 'Standard deviation of the noise on the inputs of the last client '
      'in the feature_noise partition, on images in 0..1 or normalised '
      'features; the first has none, those between a share.')
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
      'random crop, flip, rotation; your own may name one; others: none).')
  shuffle: bool = _flag(
      True, "Whether each client's examples are reshuffled in every local "
      'epoch. With --noshuffle every epoch has the same batches, sorted by '
      'class, as a data loader without shuffling reads them from a partition '
      'made class by class.')
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
  eval_examples: int = _flag(
      0, 'Test examples on which models are evaluated: a random subset, the '
      'same for all seeds, methods, rounds and devices; 0 takes all.')
  checkpoint_every: int = _flag(
      10, 'Rounds between checkpoints; the last round is always saved. '
      '0 saves none.')
  checkpoint_keep: int = _flag(
      2, 'Newest checkpoints that stay; where the newest is damaged, the one '
      'before is gone on from.')
  checkpoint_keep_every: int = _flag(
      0, 'Rounds between checkpoints that stay for good, a multiple of '
      '--checkpoint_every; 0 keeps none of them.')
  on_nan: str = _flag(
      'stop', 'Where the training of a client ends in NaN or infinity: stop '
      'the run, or skip_client, leaving the client out of the round. A global '
      'model of such numbers stops any run.', ('stop', 'skip_client'))
  check_determinism: bool = _flag(
      False, 'Whether to train the first two rounds twice, each time compiled '
      'anew, and go on only where all bits agree.')
  lanes: int = _flag(
      0, 'Clients trained side by side, on all devices together (a core of a '
      'CPU is one); 0 chooses. Changes speed, and results only by rounding.')
  shard_data: bool = _flag(
      False, 'Whether a device has the training examples of the clients that '
      'it trains in a round alone, moved to it each round, where all of them '
      'do not fit. Changes no result; cores of a CPU share the examples '
      'anyway.')
  dtype: str = _flag(
      'float32', 'Type in which layers compute and hand on their outputs; '
      'parameters stay float32.', ('float32', 'bfloat16'))
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

  def has_user_algorithm(self) -> bool:
    """Whether the algorithm is the user's own, MODULE:FACTORY."""
    return is_user_code(self.algorithm)

  def split_seed(self) -> int:
    """The seed of the partition."""
    return self.seed if self.partition_seed < 0 else self.partition_seed

  def cohort_size(self) -> int:
    """Clients sampled a round, the published code's int(clients * fraction)."""
    return int(self.num_clients * self.participation)


def is_user_code(name: str) -> bool:
  """Whether a name is that of the user's own code, MODULE:FUNCTION."""
  return bool(re.fullmatch(r'\w+(\.\w+)*:\w+', name))
