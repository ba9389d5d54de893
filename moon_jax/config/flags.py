"""The configuration of a run: one frozen dataclass, one flag per field.

Each plain setting stands with all that is known about it. A setting with
arguments of its own is a part (`moon_jax.config.parts`): a function, written as
a call. The command line, its help, docs/flags.md, error messages, the identity
of a run and sweeps follow from the fields. `moon_jax.simulation.checks`
validates a configuration; `moon_jax.simulation.build` turns it into values.
"""

from collections.abc import Sequence
import dataclasses
import math
import shlex
import typing
from typing import Any, NamedTuple

from moon_jax.config import parts
from moon_jax.config.parts import Part

DATASETS = ('digits', 'cifar10', 'cifar100', 'tiny_imagenet', 'mnist',
            'fashion_mnist', 'svhn', 'shakespeare', 'shakespeare_tokens',
            'femnist', 'breast_cancer', 'medmnist', 'emnist', 'har', 'adult',
            'colored_mnist', 'stackoverflow_tags', 'csv', 'images', 'text',
            'npz', 'npy')

HUGGINGFACE = 'hf:'  # before the name of a data set of Hugging Face

LOGGERS = ('csv', 'tensorboard', 'wandb', 'mlflow', 'aim', 'codecarbon')

MAX_INT32 = 2**31 - 1
_MANY = 10**6



class Facts(NamedTuple):
  """What is known about a setting, besides its default."""

  help: str  # what it sets, for --help and docs/flags.md
  choices: Sequence[str] | None = None  # the valid values, if they are limited
  topic: str = ''  # title of the settings from this one on
  placeholder: str = ''  # what --help shows for a value that is empty by
  # default; DIR, FILE and PATH are paths
  is_common: bool = False  # whether the short help, -h, has it
  page: str = ''  # the page of docs/ that describes it at length
  at_least: float | None = None  # the lowest valid number
  at_most: int = MAX_INT32  # the highest valid integer. Rounds, steps, examples
  # and clients are int32 in the program and its tables. Lower if the program or
  # its plan holds as many things side by side.
  above: float | None = None  # a limit that valid numbers exceed
  below: float | None = None  # a limit that valid numbers do not reach
  hint: str = ''  # what else to give than the default, for error messages
  role: str = 'result'  # what it decides. "result": the model. "recorded": what
  # is measured and kept. Both identify a run. "stop": whether a run stops, or
  # leaves a client out. "speed": how fast it is; numbers change by rounding
  # only. "place": where files are. These may change when a run resumes.
  if_fraction: str = ''  # what to give instead of a number that is not whole
  is_input: bool = False  # whether it names a file whose content identifies the
  # run
  is_shared: bool = False  # whether all runs of a sweep share the value
  varies: str = ''  # why runs of one program may differ in it: "array", an
  # array in the program; "split", who has which training example;
  # "participation", who takes part and which updates are received; "labels",
  # the labels of training examples; "host", only the host reads it; "rows", a
  # number of rows of the table; "algorithm" and "optimizer", what these values
  # (and the topology) are compared by. "": runs may not differ.
  is_part: bool = False  # whether it is a `Part`


def flag(default: Any, *args: Any, **facts: Any) -> Any:
  """Returns a field with its default and its `Facts`, as metadata by name."""
  return dataclasses.field(
      default=default, metadata=Facts(*args, **facts)._asdict())


def part(default: str, *args: Any, **facts: Any) -> Any:
  """Returns a field that is a part, a call of a function."""
  return flag(Part(default), *args, is_part=True, **facts)


@dataclasses.dataclass(frozen=True)
class Config:
  """The configuration of a run.

  The same `Config` and data set give the same numbers. Defaults are the
  CIFAR-10 setting of the MOON paper (Li, He and Song, CVPR 2021, section 4.1).
  `python -m moon_jax.train --help` describes each field. Parts are given as
  text or as `moon_jax.Part`.

  Examples:
    >>> moon_jax.run(moon_jax.Config(
    ...     dataset='digits', algorithm='moon(mu=1)', num_rounds=10))
  """

  dataset: str = flag(
      'cifar10', f'Data set: {", ".join(DATASETS)}; some take arguments, as '
      'in csv(label=ill) (docs/parts.md); or your own as MODULE:LOADER, a '
      'function of --data_dir that returns a dict of arrays; '
      'or of Hugging Face as hf:NAME_OR_PATH,OPTION=VALUE,... (docs/data.md).',
      is_common=True, topic='Data')
  data_dir: str = flag(
      '', 'Directory of the files of the data set, in a published form. '
      'cifar10, cifar100 and tiny_imagenet are downloaded into it if they are '
      'missing. For npz it is the file; for npy the directory of the '
      'arrays, which may be larger than the memory; for csv a file or a '
      'directory of files; for images the directory of the folders; for text, '
      'folders or CSV files. digits and breast_cancer need none.',
      is_common=True,
      placeholder='DIR', role='place', is_shared=True, page='data.md')
  train_examples: int = flag(
      0, 'Number of training examples of the whole run: a random subset, the '
      'same for all seeds and methods, from which validation examples and the '
      'partition are drawn; 0 uses all.', at_least=0, varies='split')
  validation_fraction: float = flag(
      0.0, 'Fraction of the training examples that no client gets and on which '
      'the global model is evaluated, drawn at random before the partition.',
      at_least=0, below=1, hint='--validation_fraction=0.1 is usual',
      varies='split', page='metrics.md#validation-examples')
  labels: Part = part(
      'clean',
      'Labels that depend on the client: those of the data set (clean); '
      'noise(rate): a label is another class with this probability; '
      'shift(groups): groups of clients permute the classes.',
      varies='labels', page='data.md#label-noise')

  num_clients: int = flag(
      10, 'Number of clients; the natural partition samples this number of the '
      "data set's clients.", is_common=True, at_least=1,
      topic='Clients')
  partition: Part = part(
      'dirichlet',
      'How training examples are split over clients: iid; label skew by class, '
      'dirichlet(beta), or by client, client_dirichlet(beta); a few classes '
      'per client, shards(shards_per_client), pathological(classes_per_client) '
      'and extended_dirichlet(classes_per_client, beta); quantity(beta), size '
      'skew; feature_noise(noise_std); rotated(groups), images rotated by '
      'groups of clients; natural, the clients of the data set; domains, one '
      'domain per client; temporal, periods in the order of the data set; '
      'flower(partitioner), of flwr-datasets; file(path), the partition.npz of '
      'a run; or your own.',
      is_common=True, varies='split', page='data.md#your-own-splits')
  partition_seed: int = flag(
      -1, 'Seed of the partition only, to compare seeds on one partition; -1 '
      'uses --seed.', at_least=-1, varies='split')
  client_test_fraction: float = flag(
      0.0, "Fraction of each client's examples that it does not train on; "
      '--client_eval_every evaluates the models on them, per client. At least '
      'one example of each client remains for training; 0 holds out none.',
      at_least=0, below=1,
      hint='--client_test_fraction=0.2 is usual',
      varies='split', page='metrics.md#held-out-data-of-clients')
  new_clients: float = flag(
      0.0, 'Further clients that never take part, as a fraction of '
      '--num_clients: --client_eval=all evaluates the model that they would '
      'begin with, and the one that they have after a round of training.',
      at_least=0, hint='--new_clients=0.2 is usual', varies='split',
      page='metrics.md#new-clients')
  participation: float = flag(
      1.0, 'Fraction of the clients that are sampled in each round; their '
      'number is rounded down.',
      is_common=True, varies='participation')
  cohort: Part = part(
      'uniform',
      'How the clients of a round are selected: uniform; '
      'power_of_choice(candidates), those with the highest last loss; oort, '
      'fast ones with a high loss; file(path), one line of clients per round; '
      'or your own.', varies='participation',
      page='rounds.md#selection-of-clients')

  model: Part = part(
      'simple_cnn',
      'Network: simple_cnn, resnet18, resnet50 and vit for images; mlp for '
      'features or images; char_lstm, transformer, bert and gpt2 for tokens; '
      'or your own. init=PATH takes weights of PyTorch (docs/pretrained.md). '
      'projection_dim=None leaves out the projection head.',
      topic='Model', is_common=True, page='user_model.md')
  init_from: str = flag(
      '', 'Initial global model: the work directory of a run, its '
      'model.safetensors or checkpoints/ROUND, or another safetensors '
      'file; by default the model is initialized from --seed.',
      placeholder='PATH', role='place', is_input=True,
      page='workdir.md#start-from-a-saved-model')

  algorithm: Part = part(
      'moon',
      'Federated algorithm, such as moon(mu, temperature, num_negatives); or '
      'your own, a function that returns a moon_jax.Algorithm.',
      topic='Method', is_common=True, varies='algorithm', page='methods.md')

  topology: Part = part(
      'star',
      'Server models, and the clients that train each: one server (star); '
      'ifca(clusters), clusters by loss; cfl(clusters), clusters that split; '
      'gossip(graph), clients that average with neighbours; '
      'epidemic(peers), clients that send to random others; '
      'hierarchical(edges, period), edge servers; or your own.',
      topic='Server', varies='algorithm', page='many_models.md')
  aggregation: Part = part(
      'average',
      'How the server combines client updates: average; fednova, normalized '
      'updates; scaffold, control variates; or, for methods that send a '
      'model, a rule that is robust against hostile clients, secure_sum; '
      'matched, which averages matched units; or your own rule.',
      varies='algorithm', page='robust.md')
  weighting: str = flag(
      'examples', "Weight of a client's model in the average: its number of "
      'examples, uniform, or its number of batches per epoch.',
      ('examples', 'uniform', 'batches'), varies='participation')
  server: Part = part(
      'sgd',
      'Optimizer of the server. sgd with learning rate 1 and no momentum '
      'takes the plain average; sgd(momentum=0.9) is FedAvgM; adam, yogi and '
      'adagrad are FedAdam, FedYogi and FedAdagrad.', varies='algorithm')

  attack: Part = part(
      'none',
      'What hostile clients do: train on flipped labels (label_flip) or '
      'images with a trigger (backdoor), or send something other than their '
      'update. attackers is the fraction of the clients that are hostile.',
      topic='Hostile clients', varies='algorithm', page='robust.md')

  compress: Part = part(
      'none',
      'How clients compress the updates that they upload; download=True also '
      'compresses downloads.',
      topic='Compression', varies='algorithm',
      page='rounds.md#compressed-updates')

  clock: Part = part(
      'none',
      'Simulated time: speeds of clients drawn from log-normal distributions '
      '(lognormal), or those of devices in a text file (file).',
      topic='Simulated time', varies='participation',
      page='rounds.md#simulated-time')
  rounds: Part = part(
      'synchronous',
      'When the server takes a step: when the clients of a round have ended '
      '(synchronous), or whenever buffer_size updates have arrived, each '
      'measured from the model that its client began with (fedbuff) or from '
      'the newest one (fedasync).', varies='algorithm',
      page='rounds.md#rounds-with-a-clock')

  local_epochs: int = flag(
      10, "Epochs over a client's data per round.",
      is_common=True, at_least=1,
      if_fraction='--local_steps=N takes N steps instead of whole epochs',
      varies='rows',
      topic='Local training')
  local_steps: int = flag(
      0, 'Local steps per round, the same for all clients, instead of '
      '--local_epochs. Each round starts with a new shuffle, and a client with '
      'fewer batches than steps trains on for further epochs. With --noshuffle '
      'every round starts with the same batches. 0 uses --local_epochs.',
      at_least=0, varies='rows')
  batch_size: int = flag(
      64, 'Examples per local step.', is_common=True, at_least=1)
  last_batch: str = flag(
      'drop', 'What happens to the last batch of an epoch, if it is shorter '
      'than the others: it is dropped (drop) or kept (keep). A client with '
      'fewer examples than one batch always trains on them.', ('drop', 'keep'),
      varies='rows')
  shuffle: bool = flag(
      True, 'Reshuffles the examples of each client in each local epoch. With '
      '--noshuffle each epoch has the same batches, sorted by class, as a data '
      'loader without shuffling reads them from a partition made class by '
      'class.', varies='host')
  augment: bool = flag(
      True, "Augments training images in the data set's usual way: cifar10 "
      'with reflect-padding of 4, random crop and flip; cifar100 with '
      'zero-padding of 4, random crop, flip and rotation; your own data set as '
      'it selects; others not at all.')
  augmentation: Part = part(
      'usual',
      'What is done to normalized training inputs after --augment: nothing '
      '(usual); cutout(length), a square of each image is set to the mean; '
      'randaugment(n, m), n random operations of magnitude m; mixup(alpha), '
      'pairs of examples are mixed, and their losses; or your own.',
      page='data.md#augmentation')
  optimizer: Part = part(
      'sgd',
      'Local optimizer: sgd(momentum, weight_decay), adam or amsgrad; its '
      'state restarts in each round.', varies='optimizer')
  learning_rate: float = flag(
      0.01, 'Local learning rate.', is_common=True, above=0, varies='array')
  schedule: Part = part(
      'constant',
      'How the learning rate changes over rounds: constant; cosine, down to 0 '
      'at the end of --num_rounds; step(every, decay). All take warmup, the '
      'rounds in which it increases linearly at the beginning.', varies='array')
  gradient_clip: float = flag(
      0.0, 'Bound on the norm of the gradient of each local step, over all '
      'parameters that it trains; larger gradients are scaled down. 0 disables '
      'it.',
      at_least=0, varies='array')

  num_rounds: int = flag(
      100, 'Number of communication rounds.', is_common=True,
      at_least=1, at_most=10 * _MANY,  # whose clients are drawn in advance
      varies='array',
      topic='Rounds')
  early_stopping: int = flag(
      0, 'Number of evaluations without a better validation accuracy after '
      'which the run ends; requires --validation_fraction. 0 trains all '
      'rounds.', at_least=0, varies='host',
      page='metrics.md#early-stopping')
  early_stopping_after: int = flag(
      0, 'Rounds whose evaluations --early_stopping does not count, for runs '
      'that improve late.', at_least=0, varies='host',
      page='metrics.md#early-stopping')
  seed: int = flag(
      0, 'Seed of the partition, cohorts, initial model, shuffles and '
      'augmentation.', is_common=True, at_least=0, varies='split')
  on_nan: str = flag(
      'stop', 'Action if the training of a client ends in NaN or infinity: '
      'stop the run, or skip_client to leave the client out of the round. A '
      'global model that is not finite stops any run.', ('stop', 'skip_client'),
      varies='host', role='stop', page='workdir.md#failures')

  eval_every: int = flag(
      1, 'Rounds between evaluations on the test set; the last round is always '
      'evaluated.', at_least=1, varies='host',
      topic='Evaluation', role='recorded')
  eval_examples: int = flag(
      0, 'Number of test examples used by evaluations: a random subset, the '
      'same for all seeds, methods, rounds and devices; 0 uses all.',
      at_least=0)
  eval_on: str = flag(
      'test', 'Examples on which the global model is evaluated: the test set, '
      'or also all training examples of the clients (train), without '
      'augmentation.', ('test', 'train'), role='recorded')
  client_eval_every: int = flag(
      0, 'Rounds between evaluations of the models of clients (which ones: '
      '--client_eval); 0 disables them.',
      at_least=0, varies='host', page='metrics.md#recorded-metrics',
      role='recorded')
  client_eval: str = flag(
      'cohort', 'Whose models --client_eval_every evaluates: cohort, the local '
      'models of the round, on held-out examples, own examples and the test '
      'set; all, the model of every client, including clients that did not '
      'take part, on its held-out examples; or both.',
      ('cohort', 'all', 'both'),
      page='metrics.md#all-clients', role='recorded')
  metrics: str = flag(
      '', 'Further metrics of the test set and, as far as they are numbers, of '
      "clients' held-out data, comma-separated: per_class_accuracy, "
      'balanced_accuracy, confusion, f1, auroc, average_precision, top5, '
      'recall_at_5, ece, perplexity, r2; or your own as MODULE:FUNCTION, a '
      'function of the logits and the labels (docs/metrics.md).',
      placeholder='NAME,...', role='recorded')

  workdir: str = flag(
      '', 'Directory of the results; by default runs/DATASET-ALGORITHM-HASH, a '
      'separate directory for each configuration.',
      is_common=True, placeholder='DIR', varies='host', role='place',
      is_shared=True, page='workdir.md',
      topic='Files and messages')
  keep_best: bool = flag(
      False, 'Also saves the global model with the best validation accuracy; '
      'requires --validation_fraction.', varies='host', role='recorded')
  save_local_models: bool = flag(
      False, 'Saves the local model of each client that trained in the last '
      'round, to local_models/CLIENT.safetensors.',
      page='workdir.md#save-local-models', role='recorded')
  checkpoint_every: int = flag(
      10, 'Rounds between checkpoints, in checkpoints/ROUND of --workdir; the '
      'last round is always saved, and a round that ends 30 s or more after '
      'the last checkpoint. 0 saves none.', at_least=0, varies='host',
      role='place')
  checkpoint_keep: int = flag(
      2, 'Number of newest checkpoints to keep; if the newest is damaged, the '
      'run resumes from the previous one.', at_least=1, varies='host',
      role='place')
  client_state: str = flag(
      'memory', 'Where the state of clients is between rounds: in memory, or '
      'in a file in --workdir, whose size is that of the clients that have '
      'trained.', ('memory', 'disk'), role='speed',
      page='devices.md#a-million-clients')
  loggers: str = flag(
      '', 'Where else the metrics of each round go, comma-separated: csv, '
      'tensorboard, wandb, mlflow, aim, codecarbon; or your own as '
      'MODULE:CLASS (docs/workdir.md).', placeholder='NAME,...', varies='host',
      role='place')

  privacy: Part = part(
      'none',
      'Differential privacy: client(clip, noise_multiplier) protects all data '
      'of a client (DP-FedAvg, with --weighting=uniform); example(clip, '
      'noise_multiplier) protects each example by noise in local steps '
      '(DP-SGD). With epsilon instead of noise_multiplier the least noise is '
      'found.',
      topic='Differential privacy', varies='algorithm', page='privacy.md')

  lanes: int = flag(
      0, 'Clients of a run trained side by side, on all devices together (a '
      'CPU core is a device); 0 chooses. Affects speed, and results only '
      'through rounding.', at_least=0, role='speed',
      topic='Speed and precision')
  debug: bool = flag(
      False, 'Runs in plain Python, one client after another: errors in your '
      'code and the first NaN name function, round, client, step and arrays; '
      'print and breakpoint() see values. Changes results only through '
      'rounding. Very slow: use few clients and rounds.', role='speed',
      page='user_algorithm.md#errors-in-your-functions')
  shard_data: bool = flag(
      False, 'Holds on a device only the training examples of the clients that '
      'it trains in a round, moved to it in each round, for data sets that do '
      'not fit. Changes no result; CPU cores share the examples anyway.',
      role='speed', page='data.md#larger-than-the-memory')

  def __post_init__(self):
    for name in PARTS:
      object.__setattr__(self, name, parts.parse(name, getattr(self, name)))

  def to_dict(self) -> dict[str, Any]:
    """Returns the fields by name: parts as text, others in their type."""
    kinds_of = {name: str if kind is Part else kind
                for name, kind in typing.get_type_hints(type(self)).items()}
    return {name: kind(getattr(self, name)) for name, kind in kinds_of.items()}

  def args(self, kind: str) -> dict[str, Any]:
    """Returns all arguments of a part, with their defaults, by name."""
    return parts.arguments(kind, getattr(self, kind))

  def files(self) -> dict[str, str]:
    """Returns the paths of files that parts name, as {'cohort.path': path}."""
    calls = {kind: getattr(self, kind) for kind in PARTS}
    if dataset := parts.written_dataset_call(self.dataset):
      calls['dataset'] = dataset
    return {f'{kind}.{name}': path for kind, call in calls.items()
            for name, path in parts.files(kind, call).items()}

  def command(self) -> str:
    """Returns the command of this run, without --workdir and --data_dir.

    Other paths are those that were given.
    """
    words = ['python -m moon_jax.train']
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value == field.default or field.name == 'workdir':
        continue
      if field.name == 'data_dir':
        value = 'DATA_DIR'
      if field.type is bool:
        words.append(f'--{field.name}' if value else f'--no{field.name}')
      else:
        words.append(f'--{field.name}={shlex.quote(str(value))}')
    return ' '.join(words)

  def logger_names(self) -> list[str]:
    """Returns the names of --loggers, each once."""
    names = map(str.strip, self.loggers.split(','))
    return list(dict.fromkeys(name for name in names if name))

  def split_seed(self) -> int:
    """Returns the seed of the partition."""
    return self.seed if self.partition_seed < 0 else self.partition_seed

  def num_attackers(self) -> int:
    """Returns the number of clients that --attack.attackers makes hostile."""
    return (0 if self.attack.name == 'none'
            else self.hostile_among(self.num_clients))

  def hostile_among(self, count: int) -> int:
    """Returns the hostile clients that a robust rule assumes, rounded up.

    It is the fraction --attack.attackers of `count`, or 0.2 without --attack.
    """
    # Rounded first: 0.2 of 15 clients is above 3 in floating point.
    fraction = self.args('attack').get('attackers', .2)
    return math.ceil(round(count * fraction, 6))

  def is_asynchronous(self) -> bool:
    """Returns whether the server takes steps instead of rounds."""
    return self.rounds.name != 'synchronous'

  def cohort_size(self) -> int:
    """Returns the clients per round: clients * fraction, rounded down."""
    if self.is_asynchronous():
      return self.args('rounds')['buffer_size']
    # Rounded first: 0.29 of 100 clients is below 29 in floating point.
    return int(round(self.num_clients * self.participation, 6))

  def num_new_clients(self) -> int:
    """Returns the number of clients that never take part."""
    return math.ceil(round(self.new_clients * self.num_clients, 6))

  def num_checkpoints(self) -> int:
    """Returns the checkpoints that may exist while one is written; 0 without.
    """
    return (self.checkpoint_keep + 1) * (self.checkpoint_every > 0)

  def misses_clients(self) -> bool:
    """Returns whether a client may have no part in a round."""
    return self.participation != 1 or self.cohort.name != 'uniform'

  def clips_updates(self) -> bool:
    """Returns whether the server adds noise that protects clients (DP-FedAvg).
    """
    return self.privacy.name == 'client' and (
        self.args('privacy')['noise_by'] == 'server')

  def has_clock(self) -> bool:
    """Returns whether the run has simulated time."""
    return self.clock.name != 'none'


PARTS = tuple(field.name for field in dataclasses.fields(Config)
              if field.metadata['is_part'])

FACTS = {field.name: field.metadata for field in dataclasses.fields(Config)}

# Topic -> flags, in the order of --help and docs/flags.md.
TOPICS: dict[str, list[str]] = {}
for _name, _facts in FACTS.items():
  _topic = _facts['topic'] or [*TOPICS][-1]
  TOPICS.setdefault(_topic, []).append(_name)


def flags_with(**facts: Any) -> tuple[str, ...]:
  """Returns the flags with these facts, in the order of --help.

  Args:
    **facts: values of attributes of `Facts`.

  Examples:
    >>> flags_with(is_shared=True)
    ('data_dir', 'workdir')
  """
  return tuple(name for name, known in FACTS.items()
               if all(known[fact] == value for fact, value in facts.items()))
