"""Flags of rounds and local training."""

import dataclasses

from moon_jax.config.flag import flag


@dataclasses.dataclass(frozen=True)
class RoundFlags:
  """Rounds, seed and checks of a run."""

  num_rounds: int = flag(100, 'Number of communication rounds.', is_common=True)
  early_stopping: int = flag(
      0, 'Number of evaluations without a better validation accuracy after '
      'which the run ends; requires --validation_fraction. 0 trains all '
      'rounds.')
  seed: int = flag(
      0, 'Seed of the partition, cohorts, initial model, shuffles and '
      'augmentation.', is_common=True)
  on_nan: str = flag(
      'stop', 'Action if the training of a client ends in NaN or infinity: '
      'stop the run, or skip_client to leave the client out of the round. A '
      'global model that is not finite stops any run.',
      ('stop', 'skip_client'))
  check_determinism: bool = flag(
      False, 'Trains the first two rounds twice before the run, compiled '
      'separately, and continues only if all bits agree.')


@dataclasses.dataclass(frozen=True)
class TrainingFlags:
  """The local training of a client."""

  local_epochs: int = flag(
      10, "Epochs over a client's data per round.", is_common=True)
  batch_size: int = flag(64, 'Examples per local step.', is_common=True)
  last_batch: str = flag(
      'drop', 'What happens to the last batch of an epoch, if it is shorter '
      'than the others: it is dropped (drop) or kept (keep). A client with '
      'fewer examples than one batch always trains on them.', ('drop', 'keep'))
  shuffle: bool = flag(
      True, 'Reshuffles the examples of each client in each local epoch. With '
      '--noshuffle each epoch has the same batches, sorted by class, as a data '
      'loader without shuffling reads them from a partition made class by '
      'class.')
  augment: bool = flag(
      True, "Augments training images in the data set's usual way: cifar10 "
      'with reflect-padding of 4, random crop and flip; cifar100 with '
      'zero-padding of 4, random crop, flip and rotation; a user-defined data '
      'set as it selects; others not at all.')
  augmentation_draws: str = flag(
      'fresh', 'Random numbers of augmentation: drawn for each client and '
      'round (fresh); or the same for all of them, by local step (recurring), '
      'as code that sets the same seed before each local training has them. '
      'Shuffles differ in both.', ('fresh', 'recurring'))
  optimizer: str = flag(
      'sgd', 'Local optimizer; its state restarts in each round.',
      ('sgd', 'adam', 'amsgrad'))
  learning_rate: float = flag(0.01, 'Local learning rate.', is_common=True)
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
  momentum: float = flag(0.9, 'Momentum of --optimizer=sgd.')
  weight_decay: float = flag(
      1e-5, 'Weight decay, added to the gradient (coupled, as in PyTorch).')
  gradient_clip: float = flag(
      0.0, 'Bound on the norm of the gradient of each local step, over all '
      'parameters; larger gradients are scaled down. 0 disables it.')
