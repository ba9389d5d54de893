"""Suggests flags and values for names that do not exist.

The names are those of Flower, NIID-Bench, the code released with MOON, PFLlib,
LEAF and FedML, and abbreviations; only names with one clear meaning. Error
messages suggest what they mean; the names are not accepted.
"""

from collections.abc import Iterable, Sequence
import difflib
import re

from moon_jax.config import FACTS, HUGGINGFACE, is_user_code, NAMES
from moon_jax.errors import UserError

_MIN_SIMILARITY = 0.7  # ratio of difflib

# Name -> flag.
FLAGS = {name: flag for flag, facts in FACTS.items()
         for name in facts['synonyms'].split()} | dict.fromkeys(
             'config config_file cfg conf config_path'.split(), 'flagfile')

_DEVICES = ('JAX uses all GPUs that it finds; set CUDA_VISIBLE_DEVICES=0 to '
            'use the first, or JAX_PLATFORMS=cpu to use none')
_SAMPLED = ('give --participation, the fraction of clients per round: with '
            '--num_clients=100, --participation=0.1 samples 10')

# Name -> advice, if no single flag has this meaning.
ADVICE = {
    **dict.fromkeys(
        'gpu gpus gpu_id gpu_ids use_gpu num_gpus cuda use_cuda no_cuda device '
        'device_id devices_id cuda_id'.split(), _DEVICES),
    **dict.fromkeys(
        'clients_per_round num_clients_per_round client_num_per_round '
        'n_clients_per_round sampled_clients clients_sampled num_participants '
        'num_sampled_clients users_per_round'.split(), _SAMPLED),
    **dict.fromkeys('resume auto_resume resume_from continue'.split(),
                    'the same command resumes a run'),
    **dict.fromkeys('iid is_iid'.split(), 'give --partition=iid'),
    **dict.fromkeys('non_iid noniid niid'.split(),
                    'give --partition=dirichlet --beta=0.5'),
    **dict.fromkeys(
        'fp16 bf16 amp use_amp half mixed_precision'.split(),
        'give --dtype=bfloat16, or --precision=tf32'),
    **dict.fromkeys(
        'epsilon target_epsilon eps dp_epsilon'.split(),
        'give --dp_noise_multiplier; the run prints its epsilon'),
    **{name: f'give --loggers={logger}'
       for logger, names in {
           'wandb': 'wandb use_wandb log_wandb with_wandb',
           'tensorboard': 'tensorboard use_tensorboard log_tensorboard tb',
           'mlflow': 'mlflow use_mlflow', 'aim': 'aim use_aim',
           'csv': 'csv log_csv'}.items()
       for name in names.split()},
}

# Flag -> name of a value elsewhere -> the value, or the flags that set it. The
# names have letters and digits only.
VALUES = {
    'dataset': {
        'fmnist': 'fashion_mnist', 'fashion': 'fashion_mnist',
        'tiny': 'tiny_imagenet', 'tinyimagenet200': 'tiny_imagenet',
        'imagenet200': 'tiny_imagenet', 'wdbc': 'breast_cancer'},
    'partition': {
        **dict.fromkeys(
            'noniid niid dir lda label labelskew labeldir noniidlabeldir '
            'hetero heterodir heterogeneous labeldistribution'.split(),
            'dirichlet'),
        **dict.fromkeys('homo homogeneous uniform random'.split(), 'iid'),
        **dict.fromkeys(
            'shard sharding pathological pat noniidlabel1 noniidlabel2 '
            'noniidlabel3'.split(), 'shards'),
        **dict.fromkeys(
            'iiddiffquantity quantityskew sizeskew unbalanced'.split(),
            'quantity'),
        **dict.fromkeys('noise featureskew gaussian'.split(), 'feature_noise'),
        **dict.fromkeys('real byuser bywriter user writer'.split(),
                        'natural')},
    'model': {
        **dict.fromkeys('cnn simplecnnmnist smallcnn lenet'.split(),
                        'simple_cnn'),
        **dict.fromkeys('resnet50cifar10 resnet50cifar100'.split(), 'resnet50'),
        **dict.fromkeys('lstm rnn charrnn stackedlstm'.split(), 'char_lstm'),
        **dict.fromkeys('dnn fc fcn'.split(), 'mlp')},
    'algorithm': {
        **dict.fromkeys('local localonly localtraining standalone'.split(),
                        'solo'),
        **dict.fromkeys('central allin pooled'.split(), 'centralized'),
        'fedavgm': '--algorithm=fedavg --server_momentum=0.9',
        **{name: f'--algorithm=fedavg --server_optimizer={optimizer} '
                 '--server_learning_rate=0.01'
           for name, optimizer in (
               ('fedadam', 'adam'), ('fedopt', 'adam'), ('fedyogi', 'yogi'),
               ('fedadagrad', 'adagrad'))}},
    'aggregation': dict.fromkeys(('avg', 'mean', 'fedavg'), 'average'),
    'weighting': {
        **dict.fromkeys('samples size datasize numexamples'.split(),
                        'examples'),
        'equal': 'uniform'},
    'norm': {'bn': 'batch', 'batchnorm': 'batch', 'gn': 'group',
             'groupnorm': 'group'},
    'dtype': {'bf16': 'bfloat16', 'fp32': 'float32', 'f32': 'float32'},
    'precision': {'bf16': 'bfloat16', 'fp32': 'highest', 'float32': 'highest'},
    'learning_rate_schedule': {
        'none': 'constant', 'cos': 'cosine', 'cosineannealing': 'cosine',
        'steplr': 'step'},
    'client_state': {'ram': 'memory', 'file': 'disk'},
}

# Algorithm that is not built in -> the page that defines it.
PAGES = {
    **dict.fromkeys(('feddyn', 'feddecorr'), 'docs/user_algorithm.md'),
    **dict.fromkeys(('ditto', 'apfl', 'fedper', 'fedrep'),
                    'docs/personalized.md'),
}


def flag(name: str, known: Iterable[str]) -> str:
  """Returns the flag that a name means, or '' if that is not clear.

  Args:
    name: a name that is no flag, such as "lr" or "num-rounds".
    known: the names of flags.
  """
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
  """Returns a question that suggests a value, such as "; did you mean ...?".

  Args:
    name: of the flag.
    given: an invalid value.
    choices: the valid values.

  Returns:
    The question with the semicolon before it, or '' if no value is similar.
  """
  word = _letters(str(given))
  if name == 'algorithm' and word in PAGES:
    return f'; {PAGES[word]} has it as a custom algorithm'
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


def check_names(name: str, given: object) -> None:
  """Checks the value of a flag of `NAMES`.

  Raises:
    UserError: if it is neither a built-in name nor custom.
  """
  known, form = NAMES[name]
  is_valid = isinstance(given, str) and (
      given in known or is_user_code(given)
      or name == 'dataset' and given.startswith(HUGGINGFACE))
  if not is_valid:
    raise UserError(f'--{name} must be one of {", ".join(known)}, or '
                    f'your own as {form}; got {given!r}'
                    f'{value(name, given, known)}')


def _letters(name):
  return re.sub(r'[^a-z0-9]', '', name.lower())
