"""Suggests flags and values for names that do not exist.

The names are those of Flower, NIID-Bench, the code released with MOON, PFLlib,
LEAF and FedML, and abbreviations; only names with one clear meaning. Error
messages suggest what they mean; the names are not accepted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import difflib
import functools
import inspect
import re
from typing import Any, TypeVar

from moon_jax.config.flags import FACTS, HUGGINGFACE, is_user_code
from moon_jax.errors import UserError

_MIN_SIMILARITY = 0.7  # ratio of difflib
_ENDINGS = ('csv', 'tsv', 'txt', 'json', 'npz', 'npy', 'parquet', 'zip', 'gz',
            'py', 'pt', 'pth')  # of files, whose names are no functions
_Made = TypeVar('_Made', bound=Callable[..., Any])


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
  """Returns the key for each word of the values."""
  return {word: key for key, words in table.items() for word in words.split()}


# Name -> flag.
FLAGS = _by_word({flag: facts['synonyms'] for flag, facts in FACTS.items()} | {
    'flagfile': 'config config_file cfg conf config_path'})

# Name -> advice, if no single flag has this meaning.
ADVICE = _by_word({
    'JAX uses all GPUs that it finds; set CUDA_VISIBLE_DEVICES=0 to use the '
    'first, or JAX_PLATFORMS=cpu to use none':
        'gpu gpus gpu_id gpu_ids use_gpu num_gpus cuda use_cuda no_cuda device '
        'device_id devices_id cuda_id',
    'give --participation, the fraction of clients per round: with '
    '--num_clients=100, --participation=0.1 samples 10':
        'clients_per_round num_clients_per_round client_num_per_round '
        'n_clients_per_round sampled_clients clients_sampled num_participants '
        'num_sampled_clients users_per_round',
    'the same command resumes a run': 'resume auto_resume resume_from continue',
    'give --partition=iid': 'iid is_iid',
    'give --partition=dirichlet --beta=0.5': 'non_iid noniid niid',
    'give --dtype=bfloat16, or --precision=tf32':
        'fp16 bf16 amp use_amp half mixed_precision',
    'give --dp_noise_multiplier; the run prints its epsilon':
        'epsilon target_epsilon eps dp_epsilon',
    'give --loggers=wandb': 'wandb use_wandb log_wandb with_wandb',
    'give --loggers=tensorboard':
        'tensorboard use_tensorboard log_tensorboard tb',
    'give --loggers=mlflow': 'mlflow use_mlflow',
    'give --loggers=aim': 'aim use_aim',
    'give --loggers=csv': 'csv log_csv'})

_ADAPTIVE = ('--algorithm=fedavg --server_optimizer={} '
             '--server_learning_rate=0.01')

# Flag -> name of a value elsewhere -> the value, or the flags that set it. The
# names have letters and digits only.
VALUES = {flag: _by_word(table) for flag, table in {
    'dataset': {
        'fashion_mnist': 'fmnist fashion',
        'tiny_imagenet': 'tiny tinyimagenet200 imagenet200',
        'breast_cancer': 'wdbc'},
    'partition': {
        'dirichlet': 'noniid niid dir lda label labelskew labeldir '
                     'noniidlabeldir hetero heterodir heterogeneous '
                     'labeldistribution',
        'iid': 'homo homogeneous uniform random',
        'shards': 'shard sharding pathological pat noniidlabel1 noniidlabel2 '
                  'noniidlabel3',
        'quantity': 'iiddiffquantity quantityskew sizeskew unbalanced',
        'feature_noise': 'noise featureskew gaussian',
        'natural': 'real byuser bywriter user writer'},
    'model': {
        'simple_cnn': 'cnn simplecnnmnist smallcnn lenet',
        'resnet50': 'resnet50cifar10 resnet50cifar100',
        'char_lstm': 'lstm rnn charrnn stackedlstm',
        'transformer': 'gpt decoder', 'mlp': 'dnn fc fcn'},
    'algorithm': {
        'solo': 'local localonly localtraining standalone',
        'centralized': 'central allin pooled',
        '--algorithm=fedavg --server_momentum=0.9': 'fedavgm',
        _ADAPTIVE.format('adam'): 'fedadam fedopt',
        _ADAPTIVE.format('yogi'): 'fedyogi',
        _ADAPTIVE.format('adagrad'): 'fedadagrad'},
    'aggregation': {
        'average': 'avg mean fedavg', 'trimmed_mean': 'trmean fedtrimmedavg',
        'median': 'fedmedian', 'multi_krum': 'mkrum', 'geometric_median':
        'rfa geomed', 'centred_clipping': 'cc centeredclipping'},
    'attack': {
        'inner_product': 'ipm foe', 'little_is_enough': 'alie lie',
        'sign_flip': 'signflipping', 'label_flip': 'labelflipping',
        'gaussian': 'noise'},
    'weighting': {'examples': 'samples size datasize numexamples',
                  'uniform': 'equal'},
    'norm': {'batch': 'bn batchnorm', 'group': 'gn groupnorm'},
    'dtype': {'bfloat16': 'bf16', 'float32': 'fp32 f32'},
    'precision': {'bfloat16': 'bf16', 'highest': 'fp32 float32'},
    'learning_rate_schedule': {
        'constant': 'none', 'cosine': 'cos cosineannealing', 'step': 'steplr'},
    'client_state': {'memory': 'ram', 'disk': 'file'},
}.items()}


def flag(name: str, known: Iterable[str]) -> str:
  """Returns the known flag that a name such as "lr" means, or ''."""
  by_letters = {_letters(other): other for other in known}
  if _letters(name) in by_letters:
    return by_letters[_letters(name)]
  name = name.lower().replace('-', '_')
  synonym = FLAGS.get(name, '')
  if synonym in by_letters.values() or name in ADVICE:
    return synonym
  near = difflib.get_close_matches(
      name, by_letters.values(), n=1, cutoff=_MIN_SIMILARITY)
  return near[0] if near else ''


def advice(name: str) -> str:
  """Returns what to do instead of giving a flag, or ''."""
  return ADVICE.get(name.lower().replace('-', '_'), '')


def value(name: str, given: object, choices: Sequence[str]) -> str:
  """Returns "; did you mean --NAME=CHOICE?" for an invalid value, or ''."""
  word = _letters(str(given))
  by_letters = {_letters(choice): choice for choice in choices}
  by_letters |= VALUES.get(name, {})
  near = [letters for letters in by_letters if word == letters]
  near = near or [letters for letters in map(_letters, choices)
                  if len(word) > 2 and letters.startswith(word)]
  near = near or difflib.get_close_matches(
      word, by_letters, n=1, cutoff=_MIN_SIMILARITY)
  found = [by_letters[letters] for letters in near]
  options = [text if text.startswith('--') else f'--{name}={text}'
             for text in found]
  return f'; did you mean {" or ".join(options)}?' if options else ''


def check_names(name: str, given: object, known: Sequence[str] = (),
                form: str = '') -> None:
  """Checks the value of a flag that takes names and custom values.

  `known` and `form` are the names, and the form of a custom value, by default
  those of the flag.

  Raises:
    UserError: if it is neither a built-in name nor custom.
  """
  known, form = known or FACTS[name]['names'], form or FACTS[name]['form']
  is_valid = isinstance(given, str) and (
      given in known or is_user_code(given)
      or name == 'dataset' and given.startswith(HUGGINGFACE))
  if not is_valid:
    raise UserError(
        f'--{name} must be one of {", ".join(known)}, or your own as {form}; '
        f'got {given!r}{value(name, given, known) or _colon(name, given)}')


def _colon(name, given):
  """Returns "; did you mean --NAME=MODULE:FUNCTION?" for MODULE.FUNCTION."""
  module, dot, function = str(given).rpartition('.')
  custom = f'{module}:{function}'
  is_meant = dot and is_user_code(custom) and function not in _ENDINGS
  return f'; did you mean --{name}={custom}?' if is_meant else ''


def arguments(made: _Made) -> _Made:
  """Makes a function or class suggest a known argument for an unknown one.

  Raises:
    TypeError: when it is called with an argument that it does not have.
  """
  function = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]
  known = list(inspect.signature(made).parameters)
  is_config = FACTS.keys() <= {*known}  # advice is on these

  @functools.wraps(function)
  def checked(*args, **kwargs):
    for name in kwargs:
      if name in known:
        continue
      near = flag(name, known)
      hint = f'did you mean {near}?' if near else (
          re.sub('--(?=[a-z])', '', advice(name)) if is_config else '')
      if hint:
        raise TypeError(f'{made.__name__} has no argument {name!r}; {hint}')
    return function(*args, **kwargs)

  if not isinstance(made, type):
    return checked  # type: ignore[return-value]
  made.__init__ = checked  # type: ignore[misc]
  return made


def _letters(name):
  return re.sub(r'[^a-z0-9]', '', name.lower())
