"""The configuration of a run: one frozen dataclass, one flag per field.

Each flag stands with all that is known about it. A new flag needs its field
here and the code that reads it: the command line, its help, docs/flags.md,
error messages, the fingerprint of a run and sweeps follow from the field.
`moon_jax.simulation.checks` validates a configuration;
`moon_jax.simulation.build` turns it into values.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import re
import shlex
import typing
from typing import Any, NamedTuple

DATASETS = ('digits', 'cifar10', 'cifar100', 'tiny_imagenet', 'mnist',
            'fashion_mnist', 'svhn', 'shakespeare', 'shakespeare_tokens',
            'femnist', 'breast_cancer', 'npz', 'npy')

HUGGINGFACE = 'hf:'  # before the name of a data set of Hugging Face

PARTITIONS = ('iid', 'dirichlet', 'shards', 'quantity', 'feature_noise',
              'natural')

COHORTS = 'uniform', 'power_of_choice', 'oort'

MODELS = ('simple_cnn', 'resnet18', 'resnet50', 'mlp', 'char_lstm',
          'transformer')

ALGORITHMS = ('fedavg', 'fedprox', 'scaffold', 'moon', 'solo', 'fednova',
              'fedproto', 'fedpac', 'feddbe', 'feduv', 'fedlc', 'fedrs',
              'fedntd', 'feddecorr', 'fedgkd', 'fedproc', 'fedrcl', 'feddyn',
              'fedadmm', 'fedspeed', 'fedsam', 'fedasam', 'mimelite', 'fedexp',
              'ccvr', 'fedper', 'fedrep', 'lgfedavg', 'fedbn', 'fedbabu',
              'fedrod', 'fedas', 'ditto', 'apfl', 'pfedme', 'perfedavg', 'fml',
              'fedkd', 'fedphp', 'fedamp', 'fedfomo', 'fedala', 'fedcross',
              'feddisco', 'qfedavg', 'centralized')

# Rules of `moon_jax.algorithms.robust`, instead of the average.
ROBUST = ('median', 'trimmed_mean', 'krum', 'multi_krum', 'bulyan',
          'geometric_median', 'norm_clipping', 'centred_clipping', 'dnc',
          'fltrust', 'majority_vote', 'secure_sum')

# What hostile clients change: their data, or (`moon_jax.algorithms.attacks`)
# their updates.
DATA_ATTACKS = ('label_flip', 'backdoor')
UPDATE_ATTACKS = ('sign_flip', 'scaling', 'gaussian', 'inner_product',
                  'little_is_enough', 'min_max')

# Of `moon_jax.algorithms.asynchronous`.
ASYNCHRONOUS = 'fedbuff', 'fedasync'
STALENESS = 'constant', 'polynomial', 'hinge'

# Of `moon_jax.algorithms.compress`.
COMPRESSORS = ('top_k', 'random_k', 'qsgd', 'sign', 'powersgd')

# Those of which a round depends on how many there are.
READ_NUM_ROUNDS = ('ccvr', 'fedkd', 'fedphp')

# Methods with --mu; others have none, or take it in --algorithm_args.
READ_MU = ('fedprox', 'moon')

LOGGERS = ('csv', 'tensorboard', 'wandb', 'mlflow', 'aim')

MAX_INT32 = 2**31 - 1
_MANY = 10**6

ON = ()  # in `only_with`: all values but 0 and off


class Facts(NamedTuple):
  """What is known about a flag, besides its default."""

  help: str  # what the flag sets, for --help and docs/flags.md
  choices: Sequence[str] | None = None  # the valid values, if they are limited
  topic: str = ''  # title of the flags from this one on, for --help and
  # docs/flags.md
  placeholder: str = ''  # what --help shows for a value that is empty by
  # default; DIR, FILE and PATH are paths
  is_common: bool = False  # whether the short help, -h, has the flag
  page: str = ''  # the page of docs/ that describes it at length
  names: Sequence[str] = ()  # that are built in, of a flag that also takes
  # custom values
  form: str = ''  # of custom values, such as MODULE:FACTORY
  synonyms: str = ''  # names of the flag in other programs, for error messages:
  # Flower, NIID-Bench, the code released with MOON, PFLlib, LEAF and FedML, and
  # abbreviations. They are not accepted.
  at_least: float | None = None  # the lowest valid number
  at_most: int = MAX_INT32  # the highest valid integer. Rounds, steps, examples
  # and clients are int32 in the program and its tables. Lower if the program or
  # its plan holds as many things side by side.
  above: float | None = None  # a limit that valid numbers exceed
  below: float | None = None  # a limit that valid numbers do not reach
  hint: str = ''  # what else to give than the default, for error messages
  if_fraction: str = ''  # what to give instead of a number that is not whole
  is_free: bool = False  # whether the flag may change when a run resumes, since
  # it does not change results: it sets where files are, how fast a run is and
  # what it keeps. (--lanes and --convolution change results by rounding, never
  # by random numbers; --on_nan lets a run that NaN stopped resume.)
  is_input: bool = False  # whether it names a file whose content identifies the
  # run
  is_later: bool = False  # whether versions before the flag did what its
  # default does. The default is then not part of the fingerprint of a run, so
  # that runs of these versions keep their work directories and can resume.
  is_shared: bool = False  # whether all runs of a sweep share the value
  varies: str = ''  # why runs of one program may differ in the flag:
  # "array": it is an array in the program. "split": it decides which client has
  # which training example. "participation": it decides which clients take part
  # and which updates are received. "labels": without noise and shift the labels
  # are those of the data set. "host": only the host reads it. "rows": it is a
  # number of rows of the table. "": runs may not differ; it changes the
  # program, its shapes, its data or its devices.
  read_by: str = ''  # who reads the flag, if not every run does: a "method"
  # that names it in its entry of `moon_jax.algorithms.registry`; such a method
  # that may be "combining" parts of others; a "model" of the package; a
  # "server"; or "clients"; --algorithm=centralized has one client.
  only_with: Mapping[str, Sequence[str]] = {}  # flags with which it has an
  # effect, and their values


def flag(default: Any, *args: Any, **facts: Any) -> Any:
  """Returns a field with its default and its `Facts`, as metadata by name."""
  return dataclasses.field(
      default=default, metadata=Facts(*args, **facts)._asdict())


@dataclasses.dataclass(frozen=True)
class Config:
  """The configuration of a run.

  The same `Config` and data set give the same numbers. Defaults are the
  CIFAR-10 setting of the MOON paper (Li, He and Song, CVPR 2021, section 4.1).
  `python -m moon_jax.train --help` describes each field.

  Examples:
    >>> moon_jax.run(moon_jax.Config(dataset='digits', num_rounds=10))
  """

  dataset: str = flag(
      'cifar10', f'Data set: {", ".join(DATASETS)}; or your own as '
      'MODULE:LOADER, a function of --data_dir that returns a dict of arrays '
      '(docs/user_data.md); or of Hugging Face as hf:NAME_OR_PATH,OPTION=VALUE,'
      '... (docs/huggingface.md).', topic='Data', is_common=True,
      names=DATASETS, form='MODULE:LOADER',
      synonyms='data dataset_name data_name')
  data_dir: str = flag(
      '', 'Directory that holds the data set in any published form, or into '
      'which it is downloaded (cifar10, cifar100, tiny_imagenet). For npz, the '
      'file; for npy, the directory of the arrays, which may exceed the '
      'memory. digits and breast_cancer need none.', is_common=True,
      placeholder='DIR', is_free=True, is_shared=True, page='data.md',
      synonyms='datadir dataset_dir dataset_path data_path data_root root '
               'data_cache_dir datapath')
  train_examples: int = flag(
      0, 'Number of training examples of the whole run: a random subset, the '
      'same for all seeds and methods, from which validation examples and the '
      'partition are drawn; 0 uses all.', at_least=0, varies='split',
      is_later=True,
      synonyms='train_samples num_train_examples max_train_samples')
  validation_fraction: float = flag(
      0.0, 'Fraction of the training examples that no client gets and on which '
      'the global model is evaluated, drawn at random before the partition.',
      at_least=0, below=1, hint='--validation_fraction=0.1 is usual',
      varies='split', is_later=True, page='metrics.md#validation-examples',
      synonyms='val_fraction val_split valid_fraction val_ratio '
               'validation_split')
  label_noise: float = flag(
      0.0, 'Probability that the label of a training example is replaced by '
      'another class, drawn uniformly; test labels stay.', at_least=0, below=1,
      varies='labels', is_later=True, page='partitions.md#label-noise',
      synonyms='noise_rate label_noise_rate')
  label_noise_form: str = flag(
      'globalized', 'Which clients have label noise: all equally (globalized), '
      'or increasing linearly from 0 for the first client to --label_noise for '
      'the last (localized).', ('globalized', 'localized'),
      only_with={'label_noise': ON}, varies='labels', is_later=True)
  concept_shift: int = flag(
      1, 'Groups of clients that label the same input differently: client i is '
      'in group i modulo this number, and each group but the first permutes '
      'the classes in its own way; 1 disables it.', at_least=1,
      at_most=_MANY, varies='labels',
      is_later=True, page='partitions.md#concept-shift')

  num_clients: int = flag(
      10, 'Number of clients; the natural partition samples this number of the '
      "data set's clients.", topic='Clients', is_common=True, at_least=1,
      read_by='clients',
      synonyms='clients n_clients nclients n_parties num_parties num_users '
               'n_users total_clients client_num_in_total num_supernodes '
               'num_agents num_partitions n_nodes num_nodes')
  partition: str = flag(
      'dirichlet', 'How training examples are split over clients: iid; '
      'dirichlet (label skew, --beta); shards (a few classes per client); '
      'quantity (size skew, --beta); feature_noise (iid, with noise on inputs '
      "that increases from client to client); natural (the data set's own "
      'clients); or your own as MODULE:FUNCTION, a function of data set, '
      'number of clients and seed that returns the indices of each client '
      '(docs/partitions.md).', is_common=True, names=PARTITIONS,
      form='MODULE:FUNCTION', read_by='clients', varies='split',
      synonyms='data_partition partition_method partition_type partitioner '
               'split split_type data_split distribution')
  beta: float = flag(
      0.5, 'Concentration of the dirichlet and quantity partitions; smaller '
      'values are more uneven.', is_common=True, above=0, read_by='clients',
      only_with={'partition': ('dirichlet', 'quantity')}, varies='split',
      synonyms='alpha dirichlet_alpha dirichlet_beta dir_alpha dir_beta '
               'partition_alpha concentration hetero_alpha dirichlet')
  shards_per_client: int = flag(
      2, 'Number of shards per client in the shards partition; a shard holds '
      'examples sorted by class, so that 2 shards are about 2 classes.',
      at_least=1, read_by='clients', only_with={'partition': ('shards',)},
      varies='split',
      synonyms='shards num_shards n_shards shard_per_user classes_per_client '
               'num_classes_per_client n_class_per_client class_per_client')
  noise_std: float = flag(
      0.1, 'Standard deviation of the noise on the inputs of the last client '
      'in the feature_noise partition, for images in 0..1 or normalized '
      'features. It increases linearly from 0 for the first client.',
      at_least=0, read_by='clients',
      only_with={'partition': ('feature_noise',)}, varies='split')
  partition_file: str = flag(
      '', 'The partition.npz of a run, or a file with the same arrays, which '
      'replaces --partition.', placeholder='FILE', varies='split', is_free=True,
      is_input=True, page='partitions.md#from-a-file')
  partition_seed: int = flag(
      -1, 'Seed of the partition only, to compare seeds on one partition; -1 '
      'uses --seed.', at_least=-1, varies='split',
      synonyms='split_seed data_seed')
  client_test_fraction: float = flag(
      0.0, "Fraction of each client's examples that it does not train on; "
      '--client_eval_every evaluates the models on them, per client. At least '
      'one example of each client remains for training; 0 holds out none.',
      at_least=0, below=1,
      hint='--client_test_fraction=0.2 is usual',
      varies='split', is_later=True, page='client_data.md')
  participation: float = flag(
      1.0, 'Fraction of the clients that are sampled in each round; their '
      'number is rounded down.',
      is_common=True, read_by='clients', varies='participation',
      synonyms='fraction frac sample sample_fraction sampling_fraction '
               'client_fraction fraction_fit fraction_train join_ratio '
               'participation_rate participation_ratio sample_rate '
               'sampling_rate sampling_ratio sample_ratio client_ratio '
               'fraction_clients clients_fraction')
  cohorts_file: str = flag(
      '', 'Text file with the clients of one round per line, numbered from 0, '
      'which replaces sampling; cohorts.txt of a run has this format.',
      placeholder='FILE', varies='participation', is_free=True, is_input=True)
  cohort: str = flag(
      'uniform', 'How the clients of a round are selected: uniform; '
      'power_of_choice, those with the highest last training loss of random '
      'candidates, usually with --weighting=uniform; oort, fast ones with a '
      'high loss and many examples; or your own as '
      'MODULE:FUNCTION, a function of what is known of the clients '
      '(docs/selection.md).', names=COHORTS, form='MODULE:FUNCTION',
      varies='participation', is_later=True,
      synonyms='client_selection selection_strategy client_selector '
               'sampling_strategy selection')
  cohort_args: str = flag(
      '', 'Arguments of --cohort, such as candidates=20 of power_of_choice (by '
      'default twice the number of clients in a round).',
      placeholder='NAME=VALUE,...', varies='participation', is_later=True,
      page='selection.md')
  dropout_rate: float = flag(
      0.0, 'Probability that a sampled client fails in a round: the server '
      'does not receive its update.', at_least=0, below=1,
      varies='participation',
      synonyms='drop_percent drop_rate straggler_rate client_dropout '
               'client_drop_rate client_dropout_rate')
  dropout_stage: str = flag(
      'before_training', 'When a client fails: before_training, so that its '
      'state does not change, or after_training, so that it does.',
      ('before_training', 'after_training'), only_with={'dropout_rate': ON},
      varies='participation')

  model: str = flag(
      'simple_cnn', 'Network: simple_cnn, resnet18 and resnet50 for images; '
      'mlp for features or images; char_lstm or transformer for tokens; or '
      'your own as MODULE:FACTORY, a function that returns a Flax module '
      '(docs/user_model.md).', topic='Model', is_common=True, names=MODELS,
      form='MODULE:FACTORY',
      synonyms='arch net network backbone model_name architecture model_type')
  model_args: str = flag(
      '', 'Arguments of your own --model.', placeholder='NAME=VALUE,...',
      is_later=True)
  norm: str = flag(
      'batch', 'Normalization in residual networks: batch, whose running '
      'statistics are averaged with the parameters, or group.',
      ('batch', 'group'), read_by='model',
      only_with={'model': ('resnet18', 'resnet50')},
      synonyms='norm_layer normalization norm_type')
  projection_head: bool = flag(
      True, 'Puts a projection of two layers before the output layer.',
      read_by='model', synonyms='use_project_head use_projection_head')
  projection_dim: int = flag(
      256, 'Size of the projection z.', at_least=1, at_most=_MANY,
      hint='--noprojection_head leaves the head out', read_by='model',
      only_with={'projection_head': ON},
      synonyms='out_dim proj_dim projection_size')
  init_from: str = flag(
      '', 'Initial global model: the work directory of a run, its '
      'model.safetensors or checkpoints/ROUND, or another safetensors '
      'file; by default the model is initialized from --seed.',
      placeholder='PATH', is_free=True, is_input=True,
      page='starting_points.md',
      synonyms='load_model_file pretrained init_model init_weights '
               'pretrained_model init_checkpoint load_from')

  algorithm: str = flag(
      'moon', f'Federated algorithm: {", ".join(ALGORITHMS)}; or your own '
      'as MODULE:FACTORY, a function that returns a '
      'moon_jax.Algorithm (docs/user_algorithm.md).', topic='Method',
      is_common=True, names=ALGORITHMS, form='MODULE:FACTORY',
      synonyms='alg algo method strategy federated_optimizer fl_algorithm '
               'algorithm_name aggregator')
  algorithm_args: str = flag(
      '', 'Arguments of --algorithm that are no flags (docs/methods.md), or of '
      'your own one.', placeholder='NAME=VALUE,...')
  mu: float = flag(
      -1.0, 'Weight of the contrastive loss (moon) or of the proximal term '
      "(fedprox); -1 is the algorithm's default, 5 for moon, 0.01 for "
      'fedprox, the value in hparams for your own algorithm.',
      is_common=True, read_by='method', varies='array')
  temperature: float = flag(
      0.5, 'Temperature tau of the contrastive loss (moon).', above=0,
      read_by='method', varies='array', synonyms='temp')
  num_negatives: int = flag(
      1, 'Number k of previous local models that are negatives (moon).',
      at_least=1, at_most=_MANY,
      hint='--algorithm=fedavg has no contrastive loss', read_by='method',
      synonyms='model_buffer_size pool_size negatives')
  contrastive: str = flag(
      'model', "The term that mu weighs in moon: the paper's model-contrastive "
      'loss (model), or the l2 distance of its ablation (l2).', ('model', 'l2'),
      read_by='method')
  first_negative: str = flag(
      'none', 'The negative of a client that has never trained (moon): none, '
      'or a randomly initialized network (random) as in the released code.',
      ('none', 'random'), read_by='method', is_later=True)
  negatives_pool: str = flag(
      'newest', 'How a full pool of k negatives takes a new model (moon): it '
      'keeps the newest k, or overwrites models in the order of the released '
      'code (released).', ('newest', 'released'), read_by='method',
      is_later=True)
  proximal_mu: float = flag(
      0.0, "Weight of FedProx's proximal term in the loss of another method; "
      'for --algorithm=fedprox it is --mu.', at_least=0, read_by='combining',
      varies='array', is_later=True)
  scaffold_form: str = flag(
      'paper', 'Where SCAFFOLD applies control variates: in the gradient, '
      'which needs --momentum=0 (paper), or after each step of SGD with any '
      "momentum (niid_bench), as in NIID-Bench's code.",
      ('paper', 'niid_bench'), read_by='method', is_later=True)

  aggregation: str = flag(
      'average', 'How the server combines client models: their average; for '
      "fedavg, fedprox and moon also FedNova's normalized updates or "
      "SCAFFOLD's control variates; or, for methods that send a model, a rule "
      'that is robust against hostile clients, or secure aggregation '
      '(secure_sum).',
      ('average', 'fednova', 'scaffold', *ROBUST), topic='Server',
      read_by='combining', is_later=True, page='robust.md',
      synonyms='aggregation_method aggregation_rule defense defence gar '
               'secagg secure_aggregation')
  aggregation_args: str = flag(
      '', 'Arguments of --aggregation, such as byzantine=2 of robust rules: '
      'how many clients of a round they assume to be hostile. The default is '
      '--attackers times the clients per round, rounded up.',
      placeholder='NAME=VALUE,...', is_later=True,
      only_with={'aggregation': ROBUST}, page='robust.md')
  weighting: str = flag(
      'examples', "Weight of a client's model in the average: its number of "
      'examples, uniform, or its number of batches per epoch.',
      ('examples', 'uniform', 'batches'), varies='participation')
  server_optimizer: str = flag(
      'sgd', 'Optimizer of the server; sgd with learning rate 1 and no '
      'momentum takes the plain average. adam, yogi and adagrad are FedAdam, '
      'FedYogi and FedAdagrad.', ('sgd', 'adam', 'yogi', 'adagrad'),
      read_by='server', synonyms='server_opt global_optimizer')
  server_learning_rate: float = flag(
      1.0, 'Learning rate of the server; 0.01 is usual for adam, yogi and '
      'adagrad.', above=0, read_by='server', varies='array',
      synonyms='server_lr global_lr global_learning_rate lr_server')
  server_momentum: float = flag(
      0.0, 'Momentum beta of --server_optimizer=sgd; values above 0 give '
      'FedAvgM.', at_least=0, below=1, hint='--server_momentum=0.9 is usual',
      read_by='server', only_with={'server_optimizer': ('sgd',)},
      varies='array')
  server_momentum_form: str = flag(
      'hsu', 'Momentum v of the server: v = beta v + delta (hsu), or v = beta '
      'v + (1 - beta) delta (ema) as in the code released with MOON; delta is '
      'the average client update.', ('hsu', 'ema'), read_by='server',
      only_with={'server_optimizer': ('sgd',), 'server_momentum': ON})

  attack: str = flag(
      'none', 'What hostile clients do: train on flipped labels (label_flip) '
      'or images with a trigger (backdoor), or send something other than their '
      'update.', ('none', *DATA_ATTACKS, *UPDATE_ATTACKS),
      topic='Hostile clients', is_later=True, page='robust.md',
      synonyms='attack_type byzantine_attack')
  attack_args: str = flag(
      '', 'Arguments of --attack, such as scale=2.',
      placeholder='NAME=VALUE,...', is_later=True, page='robust.md',
      only_with={'attack': ('backdoor', *UPDATE_ATTACKS)})
  attackers: float = flag(
      0.2, 'Fraction of the clients that are hostile throughout the run, '
      'rounded up to a whole number; the '
      'seed of the partition chooses them. Robust rules with an argument '
      'byzantine assume the same fraction of hostile clients in each round.',
      at_least=0, below=1, is_later=True, page='robust.md',
      synonyms='attack_ratio byzantine_fraction malicious_fraction poison_rate')

  compress: str = flag(
      'none', 'How clients compress the updates that they upload.',
      ('none', *COMPRESSORS), topic='Compression', is_later=True,
      page='compression.md', synonyms='compression compressor quantization')
  compress_fraction: float = flag(
      0.01, 'Fraction of the numbers of an update that --compress=top_k and '
      'random_k keep.', above=0, is_later=True,
      page='compression.md', only_with={'compress': ('top_k', 'random_k')},
      varies='array', synonyms='compression_ratio sparsity topk_ratio')
  compress_download: bool = flag(
      False, "Compresses downloads, the changes of the server's model, as "
      '--compress does uploads; all clients must take part in each round.',
      is_later=True, page='compression.md', only_with={'compress': COMPRESSORS},
      synonyms='bidirectional_compression downlink_compression')
  compress_args: str = flag(
      '', 'Arguments of --compress, such as has_feedback=False.',
      placeholder='NAME=VALUE,...', is_later=True, page='compression.md',
      only_with={'compress': COMPRESSORS})

  clock: str = flag(
      'none', 'Clock of simulated time: speeds of training, download and '
      'upload of clients are drawn from log-normal distributions (lognormal).',
      ('none', 'lognormal'), topic='Simulated time', varies='participation',
      is_later=True, page='time.md', synonyms='system_heterogeneity')
  clock_args: str = flag(
      '', 'Arguments of --clock: the medians seconds_per_example, download and '
      'upload (bytes per second), spread, availability, groups.',
      placeholder='NAME=VALUE,...', varies='participation', is_later=True,
      page='time.md', only_with={'clock': ('lognormal',)})
  clock_file: str = flag(
      '', 'Text file with the speeds of devices, which replaces --clock: '
      'columns seconds_per_example, download and upload (bytes per second).',
      placeholder='FILE', varies='participation', is_free=True, is_input=True,
      is_later=True, page='time.md', synonyms='device_trace client_trace')
  availability_file: str = flag(
      '', 'Text file of the times at which clients are available: columns '
      'device, begin and end (seconds). They repeat after the latest end, '
      'rounded up to days.',
      placeholder='FILE', varies='participation', is_free=True, is_input=True,
      is_later=True, page='time.md',
      synonyms='availability_trace behavior_trace')
  over_selection: float = flag(
      1.0, 'Start this multiple of the clients per round, and take the first '
      'to finish.', at_least=1, varies='participation', is_later=True,
      page='time.md', synonyms='overcommitment overselection')
  deadline: float = flag(
      0.0, 'Simulated seconds after which a round ends without the clients '
      'that have not finished; 0 waits for all.', at_least=0,
      varies='participation', is_later=True, page='time.md',
      synonyms='round_timeout timeout')
  tiers: int = flag(
      1, 'Groups of clients of similar speed; each round draws its clients '
      'from one of them (TiFL).', at_least=1, at_most=_MANY,
      varies='participation',
      is_later=True, page='time.md', synonyms='num_tiers tifl')
  partial_work: bool = flag(
      False, 'Clients that would miss the --deadline take fewer local steps '
      'instead of being left out.', varies='participation', is_later=True,
      page='time.md', synonyms='variable_local_work')
  asynchronous: str = flag(
      'none', 'The server takes a step whenever --buffer_size updates have '
      'arrived, instead of rounds. The update of a client is measured from the '
      'model it began with (fedbuff), or from the newest one (fedasync). '
      '--num_rounds counts server steps.',
      ('none', *ASYNCHRONOUS), is_later=True, page='time.md',
      synonyms='async asynchronous_mode')
  concurrency: int = flag(
      0, 'Clients that train at the same time; required with --asynchronous.',
      at_least=0, at_most=_MANY,
      only_with={'asynchronous': ASYNCHRONOUS}, varies='participation',
      is_later=True, page='time.md', synonyms='max_concurrency')
  buffer_size: int = flag(
      0, 'Updates per server step; required with --asynchronous.', at_least=0,
      at_most=_MANY,
      only_with={'asynchronous': ASYNCHRONOUS}, varies='participation',
      is_later=True, page='time.md', synonyms='aggregation_goal async_buffer')
  staleness: str = flag(
      'polynomial', 'Weight of an update whose client began tau server steps '
      'before: 1 (constant), (1 + tau)^-exponent (polynomial), or 1 / (slope '
      '(tau - delay) + 1) after a delay (hinge).', STALENESS,
      only_with={'asynchronous': ASYNCHRONOUS}, is_later=True, page='time.md',
      synonyms='staleness_function staleness_weighting')
  staleness_args: str = flag(
      '', 'Arguments of --staleness, such as exponent=1.',
      placeholder='NAME=VALUE,...', is_later=True, page='time.md',
      only_with={'asynchronous': ASYNCHRONOUS})
  max_staleness: int = flag(
      20, 'Largest staleness of an update; older ones are discarded. The '
      'server keeps one model more.', at_least=0, at_most=_MANY,
      only_with={'asynchronous': ASYNCHRONOUS}, is_later=True, page='time.md')

  local_epochs: int = flag(
      10, "Epochs over a client's data per round.", topic='Local training',
      is_common=True, at_least=1, only_with={'local_steps': (0,)},
      if_fraction='--local_steps=N takes N steps instead of whole epochs',
      varies='rows',
      synonyms='epochs epoch num_epochs n_epochs local_epoch local_ep '
               'num_local_epochs client_epochs local_max_epoch')
  local_steps: int = flag(
      0, 'Local steps per round, the same for all clients, instead of '
      '--local_epochs. Each round starts with a new shuffle, and a client with '
      'fewer batches than steps goes on to further epochs. With --noshuffle '
      'every round starts with the same batches. 0 uses --local_epochs.',
      at_least=0, varies='rows', is_later=True,
      synonyms='num_local_steps local_iters local_iterations local_updates '
               'num_local_updates local_update_steps')
  batch_size: int = flag(
      64, 'Examples per local step.', is_common=True, at_least=1,
      synonyms='bs bsz lbs local_bs local_batch_size train_batch_size '
               'minibatch_size')
  last_batch: str = flag(
      'drop', 'What happens to the last batch of an epoch, if it is shorter '
      'than the others: it is dropped (drop) or kept (keep). A client with '
      'fewer examples than one batch always trains on them.', ('drop', 'keep'),
      varies='rows', is_later=True)
  shuffle: bool = flag(
      True, 'Reshuffles the examples of each client in each local epoch. With '
      '--noshuffle each epoch has the same batches, sorted by class, as a data '
      'loader without shuffling reads them from a partition made class by '
      'class.', varies='host', is_later=True)
  augment: bool = flag(
      True, "Augments training images in the data set's usual way: cifar10 "
      'with reflect-padding of 4, random crop and flip; cifar100 with '
      'zero-padding of 4, random crop, flip and rotation; your own data set as '
      'it selects; others not at all.',
      synonyms='augmentation data_augmentation data_aug')
  augmentation_draws: str = flag(
      'fresh', 'Random numbers of augmentation: drawn for each client and '
      'round (fresh); or the same for all of them, by local step (recurring), '
      'as code that sets the same seed before each local training has them. '
      'Shuffles differ in both.', ('fresh', 'recurring'),
      only_with={'augment': ON}, is_later=True)
  optimizer: str = flag(
      'sgd', 'Local optimizer; its state restarts in each round.',
      ('sgd', 'adam', 'amsgrad'),
      synonyms='optim opt client_optimizer local_optimizer')
  learning_rate: float = flag(
      0.01, 'Local learning rate.', is_common=True, above=0, varies='array',
      synonyms='lr local_lr client_lr local_learning_rate client_learning_rate '
               'init_lr base_lr lr_client')
  learning_rate_schedule: str = flag(
      'constant', 'How the learning rate changes over rounds: constant; '
      'cosine, down to 0 at the end of --num_rounds; or step, multiplied by '
      '--learning_rate_decay after every --decay_rounds rounds.',
      ('constant', 'cosine', 'step'), varies='array', is_later=True,
      synonyms='lr_schedule lr_scheduler scheduler')
  learning_rate_decay: float = flag(
      0.1, 'Factor of --learning_rate_schedule=step.', above=0,
      only_with={'learning_rate_schedule': ('step',)}, varies='array',
      is_later=True, synonyms='lr_decay lr_gamma gamma lr_decay_rate')
  decay_rounds: int = flag(
      0, 'Rounds between decays of --learning_rate_schedule=step.', at_least=0,
      only_with={'learning_rate_schedule': ('step',)}, varies='array',
      is_later=True, synonyms='lr_step_size lr_decay_rounds lr_decay_steps')
  warmup_rounds: int = flag(
      0, 'Rounds at the beginning in which the learning rate increases '
      'linearly; the schedule starts after them.', at_least=0, varies='array',
      is_later=True, synonyms='warmup lr_warmup')
  momentum: float = flag(
      0.9, 'Momentum of --optimizer=sgd.', at_least=0, below=1,
      only_with={'optimizer': ('sgd',)}, varies='array')
  weight_decay: float = flag(
      1e-5, 'Weight decay, added to the gradient (coupled, as in PyTorch).',
      at_least=0, varies='array', synonyms='wd reg l2_reg')
  gradient_clip: float = flag(
      0.0, 'Bound on the norm of the gradient of each local step, over all '
      'parameters that it trains; larger gradients are scaled down. 0 disables '
      'it.',
      at_least=0, varies='array', is_later=True,
      synonyms='max_grad_norm grad_clip clip_grad clip_grad_norm '
               'gradient_clip_val')

  num_rounds: int = flag(
      100, 'Number of communication rounds.', topic='Rounds', is_common=True,
      at_least=1, at_most=10 * _MANY,  # whose clients are drawn in advance
      varies='array',
      synonyms='rounds round n_rounds comm_round comm_rounds '
               'communication_rounds num_comm_rounds num_server_rounds '
               'server_rounds global_rounds global_round global_epochs '
               'total_rounds max_rounds communication_round')
  early_stopping: int = flag(
      0, 'Number of evaluations without a better validation accuracy after '
      'which the run ends; requires --validation_fraction. 0 trains all '
      'rounds.', at_least=0, varies='host', is_later=True,
      page='metrics.md#early-stopping', synonyms='patience')
  seed: int = flag(
      0, 'Seed of the partition, cohorts, initial model, shuffles and '
      'augmentation.', is_common=True, at_least=0, varies='split',
      synonyms='random_seed init_seed manual_seed rng_seed')
  on_nan: str = flag(
      'stop', 'Action if the training of a client ends in NaN or infinity: '
      'stop the run, or skip_client to leave the client out of the round. A '
      'global model that is not finite stops any run.', ('stop', 'skip_client'),
      varies='host', is_free=True, page='failures.md')
  check_determinism: bool = flag(
      False, 'Trains the first two rounds twice before the run, compiled '
      'separately, and continues only if all bits agree.', is_free=True)

  eval_every: int = flag(
      1, 'Rounds between evaluations on the test set; the last round is always '
      'evaluated.', topic='Evaluation', at_least=1, varies='host',
      synonyms='eval_gap eval_interval eval_freq eval_frequency test_every '
               'test_interval frequency_of_the_test test_freq evaluate_every')
  eval_examples: int = flag(
      0, 'Number of test examples used by evaluations: a random subset, the '
      'same for all seeds, methods, rounds and devices; 0 uses all.',
      at_least=0, is_later=True)
  eval_on: str = flag(
      'test', 'Examples on which the global model is evaluated: the test set, '
      'or also all training examples of the clients (train), without '
      'augmentation.', ('test', 'train'), is_later=True)
  client_eval_every: int = flag(
      0, 'Rounds between evaluations of the local models and of the global '
      "model, on each client's own examples and on the test set; 0 disables "
      'them.', at_least=0, varies='host', page='workdir.md#metrics')
  metrics: str = flag(
      '', 'Further metrics of the test set, comma-separated: '
      'per_class_accuracy, balanced_accuracy, confusion, f1, top5, ece; or '
      'your own as MODULE:FUNCTION, a function of the logits and the labels '
      '(docs/metrics.md).', placeholder='NAME,...', is_later=True,
      synonyms='metric')
  epoch_losses: bool = flag(
      False, 'Records the training loss of each local epoch, the mean over the '
      'steps of all clients of the round.',
      only_with={'local_steps': (0,)}, varies='host', is_later=True,
      page='workdir.md#metrics')

  workdir: str = flag(
      '', 'Directory of the results; by default runs/DATASET-ALGORITHM-HASH, a '
      'separate directory for each configuration.', topic='Files and messages',
      is_common=True, placeholder='DIR', varies='host', is_free=True,
      is_shared=True, page='workdir.md',
      synonyms='output_dir out_dir outdir output output_path save_dir log_dir '
               'logdir logs_dir modeldir results_dir result_dir exp_dir '
               'save_path save_folder_name log_path run_dir experiment_dir')
  keep_best: bool = flag(
      False, 'Also saves the global model with the best validation accuracy; '
      'requires --validation_fraction.', varies='host', is_later=True,
      synonyms='save_best')
  save_local_models: bool = flag(
      False, 'Saves the local model of each client that trained in the last '
      'round, to local_models/CLIENT.safetensors.', is_later=True,
      page='starting_points.md#save-local-models')
  checkpoint_every: int = flag(
      10, 'Rounds between checkpoints, in checkpoints/ROUND of --workdir; the '
      'last round is always saved, and a round that ends 30 s or more after '
      'the last checkpoint. 0 saves none.', at_least=0, varies='host',
      is_free=True,
      synonyms='save_every save_freq save_interval ckpt_every '
               'checkpoint_interval checkpoint_freq')
  checkpoint_keep: int = flag(
      2, 'Number of newest checkpoints to keep; if the newest is damaged, the '
      'run resumes from the previous one.', at_least=1, varies='host',
      is_free=True)
  checkpoint_keep_every: int = flag(
      0, 'Rounds between checkpoints that are kept permanently, a multiple of '
      '--checkpoint_every; 0 keeps only the newest.', at_least=0, varies='host',
      is_free=True)
  client_state: str = flag(
      'memory', 'Where the state of clients is between rounds: in memory, or '
      'in a file in --workdir, whose size is that of the clients that have '
      'trained.', ('memory', 'disk'), is_free=True, page='cross_device.md')
  quiet: bool = flag(
      False, 'Prints only warnings, errors and the final line; log.txt in '
      '--workdir has all messages.', is_free=True, synonyms='silent')
  loggers: str = flag(
      '', 'Where else the metrics of each round go, comma-separated: csv, '
      'tensorboard, wandb, mlflow, aim; or your own as MODULE:CLASS '
      '(docs/loggers.md).', placeholder='NAME,...', varies='host', is_free=True)

  dp_clip: float = flag(
      0.0, "Bound on the norm of a client's update, for differential privacy "
      '(DP-FedAvg, with --weighting=uniform), or, with --dp_unit=example, of '
      "an example's gradient; 0 disables it.",
      topic='Differential privacy',
      synonyms='dp_clip_norm dp_clipping dp_max_norm dp_l2_clip')
  dp_unit: str = flag(
      'client', 'What differential privacy protects: all data of a client '
      '(client), or each example, by clipped gradients with noise in local '
      'steps (example; DP-SGD).', ('client', 'example'), is_later=True,
      page='privacy.md', synonyms='dp_level dp_sgd dpsgd example_level_dp')
  dp_noise_multiplier: float = flag(
      0.0, 'Standard deviation of the Gaussian noise on the sum of updates, on '
      'each update (--dp_noise_by=clients), or on the sum of the gradients of '
      'a batch (--dp_unit=example), as a multiple of --dp_clip.',
      synonyms='noise_multiplier dp_noise dp_sigma')
  dp_noise_by: str = flag(
      'server', 'Who adds the noise to the updates of clients: the server, '
      'which must be trusted (central differential privacy), or clients, each '
      'to its own update (local), which leaves much more noise in the mean.',
      ('server', 'clients'), is_later=True,
      page='privacy.md', only_with={'dp_clip': ON},
      synonyms='dp_mode dp_type local_dp ldp')
  dp_quantile: float = flag(
      0.0, 'Adapts the bound on norms so that this fraction of updates stays '
      'as it is, beginning with --dp_clip; 0 keeps the bound.', at_least=0,
      below=1, hint='--dp_quantile=0.5 is usual', is_later=True,
      page='privacy.md', synonyms='dp_target_unclipped_quantile '
      'target_clipped_quantile adaptive_clipping')
  dp_delta: float = flag(
      1e-5, 'The delta at which the privacy loss epsilon is reported; below 1 '
      '/ --num_clients is usual, with --dp_unit=example below 1 / examples.',
      varies='host', synonyms='delta target_delta')

  lanes: int = flag(
      0, 'Clients of a run trained side by side, on all devices together (a '
      'CPU core is a device); 0 chooses. Affects speed, and results only '
      'through rounding.',
      topic='Speed and precision', at_least=0, is_free=True,
      synonyms='num_parallel_clients parallel_clients num_parallel')
  shard_data: bool = flag(
      False, 'Holds on a device only the training examples of the clients that '
      'it trains in a round, moved to it in each round, for data sets that do '
      'not fit. Changes no result; CPU cores share the examples anyway.',
      is_free=True, page='user_data.md#larger-than-the-memory')
  convolution: str = flag(
      'im2col', 'How residual networks compute convolutions: as matrix '
      "multiplications, on CPUs in part by XLA's convolution (im2col); or by "
      "XLA's convolution, which is cuDNN on NVIDIA GPUs (native). Affects "
      'speed and memory, and results only through rounding.',
      ('im2col', 'native'), read_by='model', is_free=True)
  dtype: str = flag(
      'float32', 'Type in which layers compute and return activations; '
      'parameters are float32.', ('float32', 'bfloat16'), read_by='model')
  precision: str = flag(
      'highest', 'Precision of float32 matrix multiplications and '
      'convolutions: highest (float32); or, on tensor cores of GPUs, with '
      'inputs split into two TF32 numbers (tf32x3, as accurate as float32), '
      "rounded to TF32 (tf32, PyTorch's default for convolutions) or rounded "
      'to bfloat16. Accumulation is float32. CPUs emulate them, slowly.',
      ('highest', 'tf32x3', 'tf32', 'bfloat16'), read_by='model', is_later=True,
      page='precision.md')

  def to_dict(self) -> dict[str, Any]:
    """Returns the fields by name, converted to their type (mu=1 to 1.0)."""
    return {name: kind(getattr(self, name))
            for name, kind in typing.get_type_hints(type(self)).items()}

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

  def has_user_algorithm(self) -> bool:
    """Returns whether the algorithm is custom, MODULE:FACTORY."""
    return is_user_code(self.algorithm)

  def has_user_model(self) -> bool:
    """Returns whether the network is custom, MODULE:FACTORY."""
    return is_user_code(self.model)

  def logger_names(self) -> list[str]:
    """Returns the names of --loggers, each once."""
    names = map(str.strip, self.loggers.split(','))
    return list(dict.fromkeys(name for name in names if name))

  def split_seed(self) -> int:
    """Returns the seed of the partition."""
    return self.seed if self.partition_seed < 0 else self.partition_seed

  def num_attackers(self) -> int:
    """Returns the number of clients that --attackers makes hostile."""
    return self.hostile_among(self.num_clients)

  def hostile_among(self, count: int) -> int:
    """Returns --attackers times a number of clients, rounded up."""
    # Rounded first: 0.2 of 15 clients is above 3 in floating point.
    return math.ceil(round(count * self.attackers, 6))

  def cohort_size(self) -> int:
    """Returns the clients per round: clients * fraction, rounded down."""
    if self.asynchronous != 'none':
      return self.buffer_size
    # Rounded first: 0.29 of 100 clients is below 29 in floating point.
    return int(round(self.num_clients * self.participation, 6))

  def misses_clients(self) -> bool:
    """Returns whether a client may have no part in a round."""
    return self.participation != 1 or bool(self.cohorts_file) or (
        self.cohort != 'uniform')

  def clips_updates(self) -> bool:
    """Returns whether the server adds noise that protects clients (DP-FedAvg).
    """
    return self.dp_clip > 0 and self.dp_unit == 'client' and (
        self.dp_noise_by == 'server')

  def has_clock(self) -> bool:
    """Returns whether the run has simulated time."""
    return self.clock != 'none' or bool(self.clock_file)


FACTS = {field.name: field.metadata for field in dataclasses.fields(Config)}

# Topic -> flags, in the order of --help and docs/flags.md.
TOPICS: dict[str, list[str]] = {}
for _name, _facts in FACTS.items():
  _topic = _facts['topic'] or [*TOPICS][-1]
  TOPICS.setdefault(_topic, []).append(_name)


def flags_with(**facts: Any) -> tuple[str, ...]:
  """Returns the flags of which these facts hold, in the order of --help.

  Args:
    **facts: values of attributes of `Facts`.

  Examples:
    >>> flags_with(is_shared=True)
    ('data_dir', 'workdir')
  """
  return tuple(name for name, known in FACTS.items()
               if all(known[fact] == value for fact, value in facts.items()))


def is_user_code(name: str) -> bool:
  """Returns whether a name denotes custom code, MODULE:FUNCTION."""
  return bool(re.fullmatch(r'\w+(\.\w+)*:\w+', name))
