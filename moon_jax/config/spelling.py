"""Suggests what a name or a value that does not exist means.

The values are those of other programs; see `moon_jax.config.suggest`.
"""

from collections.abc import Iterable, Mapping, Sequence
import difflib
import re
from typing import Any

from moon_jax.errors import setting

_MIN_SIMILARITY = 0.7  # ratio of difflib
_ENDINGS = ('csv', 'tsv', 'txt', 'json', 'npz', 'npy', 'parquet', 'zip', 'gz',
            'py', 'pt', 'pth')  # of files, whose names are no functions


def by_word(table: Mapping[Any, str]) -> dict[str, Any]:
  """Returns the key for each word of the values."""
  return {word: key for key, words in table.items() for word in words.split()}


# Name elsewhere -> flag, or argument of a part.
FLAGS = by_word({
    'flagfile': 'config', 'workdir': 'logdir output_dir',
    'num_clients': 'n_parties', 'batch_size': 'local_bs',
    'participation': 'frac sample_fraction join_ratio',
    'learning_rate': 'lr', 'local_epochs': 'epochs local_ep',
    'num_rounds': 'global_rounds', 'algorithm': 'alg',
    'partition.beta': 'beta alpha',
    'algorithm.mu': 'mu', 'algorithm.temperature': 'temperature tau',
    'algorithm.num_negatives': 'model_buffer_size',
    'model.projection_dim': 'out_dim',
    'optimizer.momentum': 'momentum',
    'optimizer.weight_decay': 'weight_decay reg',
    'schedule.decay': 'lr_decay',
    'server': 'server_optimizer', 'server.learning_rate': 'server_lr',
    'privacy.clip': 'dp_clip'})

_ADAPTIVE = "algorithm=fedavg server='{}(learning_rate=0.01)'"

# Flag -> name of a value elsewhere -> the value, or the settings for it. The
# names have letters and digits only.
VALUES = {flag: by_word(table) for flag, table in {
    'dataset': {
        'fashion_mnist': 'fmnist fashion',
        'tiny_imagenet': 'tiny tinyimagenet200 imagenet200',
        'breast_cancer': 'wdbc'},
    'partition': {
        'dirichlet': 'noniid niid dir lda label labelskew labeldir '
                     'noniidlabeldir hetero heterodir heterogeneous '
                     'labeldistribution',
        'iid': 'homo homogeneous uniform random',
        'shards': 'shard sharding',
        'pathological': 'pat noniidlabel1 noniidlabel2 noniidlabel3',
        'extended_dirichlet': 'exdir', 'client_dirichlet': 'innerdirichlet',
        'quantity': 'iiddiffquantity quantityskew sizeskew unbalanced',
        'feature_noise': 'noise featureskew gaussian',
        'natural': 'real byuser bywriter user writer'},
    'model': {
        'simple_cnn': 'cnn simplecnnmnist smallcnn lenet',
        'resnet50': 'resnet50cifar10 resnet50cifar100',
        'char_lstm': 'lstm rnn charrnn stackedlstm',
        'transformer': 'decoder', 'gpt2': 'gpt', 'bert': 'encoder',
        'vit': 'visiontransformer deit', 'mlp': 'dnn fc fcn'},
    'algorithm': {
        'solo': 'local localonly localtraining standalone',
        'centralized': 'central allin pooled',
        "algorithm=fedavg server='sgd(momentum=0.9)'": 'fedavgm',
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
    'topology': {
        'ifca': 'hypcluster', 'cfl': 'clusteredfl clustered',
        'gossip': 'dpsgd decentralized', 'epidemic': 'ellocal eloracle',
        'hierarchical': 'hierfavg edge'},
    'weighting': {'examples': 'samples size datasize numexamples',
                  'uniform': 'equal'},
    'schedule': {
        'constant': 'none', 'cosine': 'cos cosineannealing', 'step': 'steplr'},
    'client_state': {'memory': 'ram', 'disk': 'file'},
}.items()}


def near(name: str, known: Iterable[str]) -> str:
  """Returns the known name that is most similar to a name, or ''."""
  return ''.join(
      difflib.get_close_matches(name, known, n=1, cutoff=_MIN_SIMILARITY))


def near_argument(kind: str, name: str, known: Iterable[str]) -> str:
  """Returns the argument of a part of a kind that a name means, or ''."""
  by_letters = {letters(other): other for other in known}
  meant_kind, _, argument = FLAGS.get(name.lower(), '').rpartition('.')
  if argument in by_letters.values() and meant_kind in ('', kind):
    return argument
  return by_letters.get(letters(name)) or near(name, by_letters.values())


def remedy(name: str, given: object, choices: Sequence[str]) -> str:
  """Returns "Did you mean --NAME=CHOICE?" for an invalid value, or ''."""
  word = letters(str(given))
  by_letters = {letters(choice): choice for choice in choices}
  by_letters |= VALUES.get(name, {})
  keys = [word] if word in by_letters else []
  keys = keys or [key for key in map(letters, choices)
                  if len(word) > 2 and key.startswith(word)]
  keys = keys or difflib.get_close_matches(
      word, by_letters, n=1, cutoff=_MIN_SIMILARITY)
  options = [' '.join(
      setting(*word.split('=', 1)) for word in text.split(' ')
  ) if '=' in text else setting(name, text)
             for text in (by_letters[key] for key in keys)]
  return f'Did you mean {" or ".join(options)}?' if options else ''


def colon(name: str, given: object) -> str:
  """Returns "Did you mean --NAME=MODULE:FUNCTION?" for MODULE.FUNCTION."""
  place, bracket, arguments = str(given).partition('(')
  module, dot, function = place.rpartition('.')
  custom = f'{module}:{function}'
  is_meant = dot and is_user_code(custom) and function not in _ENDINGS
  custom += bracket + arguments
  return f'Did you mean {setting(name, custom)}?' if is_meant else ''


def is_user_code(name: str) -> bool:
  """Returns whether a name denotes custom code, MODULE:FUNCTION."""
  word = r'[^\W\d]\w*'
  return bool(re.fullmatch(rf'{word}(\.{word})*:{word}', name))


def custom_name(call: str) -> str:
  """Returns the MODULE:FUNCTION of a call of your own; '' of another one."""
  name = call.partition('(')[0]
  return name if is_user_code(name) else ''


def letters(name: str) -> str:
  """Returns the letters and digits of a name, in lower case."""
  return re.sub(r'[^a-z0-9]', '', name.lower())
