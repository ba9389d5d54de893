"""Flags of the data set, its partition and the participation of clients."""

import dataclasses

from moon_jax.config.flag import flag

DATASETS = ('digits', 'cifar10', 'cifar100', 'tiny_imagenet', 'mnist',
            'fashion_mnist', 'svhn', 'shakespeare', 'femnist', 'celeba',
            'breast_cancer', 'npz', 'npy')

HUGGINGFACE = 'hf:'  # before the name of a data set of Hugging Face

PARTITIONS = ('iid', 'dirichlet', 'shards', 'quantity', 'feature_noise',
              'natural')


@dataclasses.dataclass(frozen=True)
class DataFlags:
  """The data set and its labels."""

  dataset: str = flag(
      'cifar10', f'Data set: {", ".join(DATASETS)}; or user-defined as '
      'MODULE:LOADER, a function of --data_dir that returns a dict of arrays '
      '(docs/user_data.md); or of Hugging Face as hf:NAME_OR_PATH,OPTION=VALUE,'
      '... (docs/huggingface.md).', is_common=True)
  data_dir: str = flag(
      '', 'Directory that holds the data set in any published form, or into '
      'which it is downloaded (cifar10, cifar100, tiny_imagenet); "tfds" '
      'prepares it with tensorflow-datasets and TensorFlow. For npz, the file; '
      'for npy, the directory of the arrays, which may exceed the memory. '
      'digits and breast_cancer need none.', placeholder='DIR', is_common=True)
  train_examples: int = flag(
      0, 'Number of training examples of the whole run: a random subset, the '
      'same for all seeds and methods, from which validation examples and the '
      'partition are drawn; 0 uses all.')
  validation_fraction: float = flag(
      0.0, 'Fraction of the training examples that no client gets and on which '
      'the global model is evaluated, drawn at random before the partition.')
  label_noise: float = flag(
      0.0, 'Probability that the label of a training example is replaced by '
      'another class, drawn uniformly; test labels stay.')
  label_noise_form: str = flag(
      'globalized', 'Which clients have label noise: all equally (globalized), '
      'or increasing linearly from 0 for the first client to --label_noise for '
      'the last (localized).', ('globalized', 'localized'))
  concept_shift: int = flag(
      1, 'Groups of clients that label the same input differently: client i is '
      'in group i modulo this number, and each group but the first permutes '
      'the classes in its own way; 1 disables it.')


@dataclasses.dataclass(frozen=True)
class ClientFlags:
  """The split of the examples over clients, and the clients of each round."""

  num_clients: int = flag(
      10, 'Number of clients; the natural partition samples this number of the '
      "data set's clients.", is_common=True)
  partition: str = flag(
      'dirichlet', 'How training examples are split over clients: iid; '
      'dirichlet (label skew, --beta); shards (a few classes per client); '
      'quantity (size skew, --beta); feature_noise (iid, with noise on inputs '
      "that increases from client to client); natural (the data set's own "
      'clients); or user-defined as MODULE:FUNCTION, a function of data set, '
      'number of clients and seed that returns the indices of each client '
      '(docs/partitions.md).', is_common=True)
  beta: float = flag(
      0.5, 'Concentration of the dirichlet and quantity partitions; smaller '
      'values are more uneven.', is_common=True)
  shards_per_client: int = flag(
      2, 'Number of shards per client in the shards partition; a shard holds '
      'examples sorted by class, so that 2 shards are about 2 classes.')
  noise_std: float = flag(
      0.1, 'Standard deviation of the noise on the inputs of the last client '
      'in the feature_noise partition, for images in 0..1 or normalized '
      'features. It increases linearly from 0 for the first client.')
  partition_file: str = flag(
      '', 'The partition.npz of a run, or a file with the same arrays, which '
      'replaces --partition.', placeholder='FILE')
  partition_seed: int = flag(
      -1, 'Seed of the partition only, to compare seeds on one partition; -1 '
      'uses --seed.')
  client_test_fraction: float = flag(
      0.0, "Fraction of each client's examples that it does not train on; "
      '--client_eval_every evaluates the models on them, per client. At least '
      'one example of each client remains for training; 0 holds out none.')
  participation: float = flag(
      1.0, 'Fraction of the clients that are sampled in each round.',
      is_common=True)
  cohorts_file: str = flag(
      '', 'Text file with the clients of one round per line, numbered from 0, '
      'which replaces sampling; cohorts.txt of a run has this format.',
      placeholder='FILE')
  dropout_rate: float = flag(
      0.0, 'Probability that a sampled client fails in a round: the server '
      'does not receive its update.')
  dropout_stage: str = flag(
      'before_training', 'When a client fails: before_training, so that its '
      'state does not change, or after_training, so that it does.',
      ('before_training', 'after_training'))
