"""Flags of rounds, local training and devices."""

import dataclasses

from moon_jax.config.flag import flag


@dataclasses.dataclass(frozen=True)
class TrainingFlags:
  """Flags of rounds, local training and devices."""

  num_rounds: int = flag(100, 'Number of communication rounds.')
  early_stopping: int = flag(
      0, 'Number of evaluations without a better validation accuracy after '
      'which the run ends; requires --validation_fraction. 0 trains all '
      'rounds.')
  local_epochs: int = flag(10, "Epochs over a client's data per round.")
  batch_size: int = flag(64, 'Examples per local step.')
  last_batch: str = flag(
      'drop', 'Whether the last batch of an epoch, if it is shorter than the '
      'others, is dropped or kept. A client with fewer examples than one batch '
      'always trains on them.', ('drop', 'keep'))
  optimizer: str = flag(
      'sgd', 'Local optimizer, reset in each round.',
      ('sgd', 'adam', 'amsgrad'))
  learning_rate: float = flag(0.01, 'Local learning rate.')
  learning_rate_schedule: str = flag(
      'constant', 'How the learning rate changes over rounds: constant; '
      'cosine, down to 0 at the end of --num_rounds; or step, multiplied by '
      '--learning_rate_decay after every --decay_rounds rounds.',
      ('constant', 'cosine', 'step'))
  learning_rate_decay: float = flag(
      0.1, 'Factor of --learning_rate_schedule=step.')
  decay_rounds: int = flag(
      0, 'Rounds between decays of --learning_rate_schedule=step.')
  warmup_rounds: int = flag(
      0, 'Rounds at the beginning in which the learning rate increases '
      'linearly; the schedule starts after them.')
  gradient_clip: float = flag(
      0.0, 'Bound on the norm of the gradient of each local step, over all '
      'parameters; larger gradients are scaled down. 0 disables it.')
  momentum: float = flag(0.9, 'Momentum of sgd.')
  weight_decay: float = flag(
      1e-5, 'Weight decay, added to the gradient (coupled, as in PyTorch).')
  augment: bool = flag(
      True, "Whether training images are augmented, in the data set's usual "
      'way (cifar10: reflect-pad 4, random crop, flip; cifar100: zero-pad 4, '
      'random crop, flip, rotation; user-defined: as '
      'selected by the data set; others: none).')
  augmentation_draws: str = flag(
      'fresh', 'Random numbers of augmentation: drawn for each client and '
      'round (fresh); or the same for all of them, by local step (recurring), '
      'as code that sets the same seed before each local training has them. '
      'Shuffles differ in both.', ('fresh', 'recurring'))
  shuffle: bool = flag(
      True, "Whether each client's examples are reshuffled in each local "
      'epoch. With --noshuffle each epoch has the same batches, sorted by '
      'class, as a data loader without shuffling reads them from a partition '
      'made class by class.')
  seed: int = flag(
      0, 'Seed of the partition, cohorts, initial model, shuffles and '
      'augmentation.')
  on_nan: str = flag(
      'stop', 'Action if the training of a client ends in NaN or infinity: '
      'stop the run, or skip_client to leave the client out of the round. A '
      'global model that is not finite stops any run.',
      ('stop', 'skip_client'))
  check_determinism: bool = flag(
      False, 'Whether to train the first two rounds twice, compiling each '
      'time, and to continue only if all bits agree.')
  lanes: int = flag(
      0, 'Clients trained side by side, on all devices together (a CPU core is '
      'a device); 0 chooses. Affects speed, and results only through rounding.')
  shard_data: bool = flag(
      False, 'Whether a device holds only the training examples of the clients '
      'that it trains in a round, moved to it in each round, for data sets '
      'that do not fit. Changes no result; CPU cores share the examples '
      'anyway.')
