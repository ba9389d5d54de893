"""Flags of evaluation and of the files of a run."""

import dataclasses

from moon_jax.config.flag import flag

LOGGERS = ('csv', 'tensorboard', 'wandb', 'mlflow', 'aim')


@dataclasses.dataclass(frozen=True)
class EvaluationFlags:
  """Evaluation and metrics."""

  eval_every: int = flag(
      1, 'Rounds between evaluations on the test set; the last round is always '
      'evaluated.')
  eval_examples: int = flag(
      0, 'Number of test examples used by evaluations: a random subset, the '
      'same for all seeds, methods, rounds and devices; 0 uses all.')
  eval_on: str = flag(
      'test', 'Examples on which the global model is evaluated: the test set, '
      "or also all training examples of the clients (train), without "
      'augmentation.', ('test', 'train'))
  client_eval_every: int = flag(
      0, 'Rounds between evaluations of the local models and of the global '
      "model, on each client's own examples and on the test set; 0 disables "
      'them.')
  metrics: str = flag(
      '', 'Further metrics of the test set, comma-separated: per_class_accuracy'
      ', balanced_accuracy, confusion, f1, top5, ece; or user-defined as '
      'MODULE:FUNCTION, a function of the logits and the labels '
      '(docs/metrics.md).', placeholder='NAME,...')
  epoch_losses: bool = flag(
      False, 'Records the training loss of each local epoch, the mean over the '
      'steps of all clients of the round.')


@dataclasses.dataclass(frozen=True)
class OutputFlags:
  """Files, checkpoints and messages."""

  workdir: str = flag(
      '', 'Directory of the results; by default runs/DATASET-ALGORITHM-HASH, '
      'a separate directory for each configuration.',
      placeholder='DIR', is_common=True)
  keep_best: bool = flag(
      False, 'Also saves the global model with the best validation accuracy; '
      'requires --validation_fraction.')
  save_local_models: bool = flag(
      False, 'Saves the local model of each client that trained in the last '
      'round, to local_models/CLIENT.safetensors.')
  checkpoint_every: int = flag(
      10, 'Rounds between checkpoints, in checkpoints/ROUND of --workdir; the '
      'last round is always saved. 0 saves none.')
  checkpoint_keep: int = flag(
      2, 'Number of newest checkpoints to keep; if the newest is damaged, the '
      'run resumes from the previous one.')
  checkpoint_keep_every: int = flag(
      0, 'Rounds between checkpoints that are kept permanently, a multiple of '
      '--checkpoint_every; 0 keeps only the newest.')
  client_state: str = flag(
      'memory', 'Where the state of clients is between rounds: in memory, or '
      'in a file in --workdir, whose size is that of the clients that have '
      'trained.', ('memory', 'disk'))
  quiet: bool = flag(
      False, 'Prints only warnings, errors and the final line; log.txt in '
      '--workdir has all messages.')
  loggers: str = flag(
      '', 'Where else the metrics of each round go, comma-separated: csv, '
      'tensorboard, wandb, mlflow, aim; or user-defined as MODULE:CLASS '
      '(docs/loggers.md).', placeholder='NAME,...')
