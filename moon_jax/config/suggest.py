"""Suggests flags and values for names that do not exist.

The names are those of Flower, NIID-Bench, the code released with MOON, PFLlib,
LEAF and FedML, and abbreviations; only names with one clear meaning. Error
messages suggest what they mean; the names are not accepted.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
import inspect
import re
import shlex
from typing import Any, TypeVar

from moon_jax.config import parts
from moon_jax.config.flags import FACTS, HUGGINGFACE
from moon_jax.config.spelling import (
  by_word,
  colon,
  is_user_code,
  letters,
  near,
  value,
)
from moon_jax.errors import UserError

_Made = TypeVar('_Made', bound=Callable[..., Any])


# Name -> flag, argument of a part, or flag with its value, in which ... stands
# for the value that is given. Names of other programs, and of earlier versions.
FLAGS = by_word({
    'flagfile': 'config config_file',
    'data_dir': 'datadir data_path data_root',
    'num_clients': 'n_clients clients',
    'participation': 'fraction sample_fraction join_ratio',
    'learning_rate': 'lr', 'local_epochs': 'epochs local_ep num_epochs',
    'num_rounds': 'comm_round global_rounds', 'batch_size': 'bs local_bs',
    'workdir': 'logdir output_dir', 'early_stopping': 'patience',
    'gradient_clip': 'max_grad_norm', 'model': 'net arch', 'algorithm': 'alg',
    'partition.beta': 'beta alpha dirichlet_alpha',
    'partition.shards_per_client': 'shards_per_client',
    'partition.noise_std': 'noise_std',
    'labels=noise(rate=...)': 'label_noise',
    'labels=noise(form=...)': 'label_noise_form',
    'labels=shift(groups=...)': 'concept_shift',
    'partition=file(path=...)': 'partition_file',
    'cohort=file(path=...)': 'cohorts_file',
    'algorithm.mu': 'mu', 'algorithm.temperature': 'temperature temp tau',
    'algorithm.num_negatives': 'num_negatives model_buffer_size',
    'algorithm.ARGUMENT': 'algorithm_args', 'model.ARGUMENT': 'model_args',
    'aggregation.ARGUMENT': 'aggregation_args',
    'cohort.ARGUMENT': 'cohort_args',
    'attack.ARGUMENT': 'attack_args', 'compress.ARGUMENT': 'compress_args',
    'clock.ARGUMENT': 'clock_args', 'algorithm.proximal_mu': 'proximal_mu',
    'algorithm=moon_l2': 'contrastive', 'algorithm.form': 'scaffold_form',
    'algorithm.first_negative': 'first_negative',
    'algorithm.pool': 'negatives_pool',
    'model.norm': 'norm', 'model.dtype': 'dtype',
    'model.precision': 'precision',
    'model.convolution': 'convolution',
    'model.projection_dim': 'projection_dim out_dim',
    'model.projection_dim=None': 'projection_head noprojection_head',
    'optimizer.momentum': 'momentum',
    'optimizer.weight_decay': 'weight_decay wd reg',
    'schedule': 'learning_rate_schedule lr_scheduler',
    'schedule.decay': 'learning_rate_decay lr_decay',
    'schedule.every': 'decay_rounds', 'schedule.warmup': 'warmup_rounds',
    'server': 'server_optimizer server_opt',
    'server.learning_rate': 'server_learning_rate server_lr',
    'server.momentum': 'server_momentum', 'server.form': 'server_momentum_form',
    'attack.attackers': 'attackers', 'compress.fraction': 'compress_fraction',
    'compress.download': 'compress_download',
    'clock=file(path=...)': 'clock_file',
    'clock.availability_file': 'availability_file',
    **{f'rounds.{name}': name for name in (
        'over_selection', 'deadline', 'tiers', 'partial_work', 'concurrency',
        'buffer_size', 'staleness', 'max_staleness', 'dropout_rate',
        'dropout_stage')},
    'rounds.staleness=polynomial(exponent=1)': 'staleness_args',
    'rounds=fedbuff(concurrency=4, buffer_size=2)': 'asynchronous',
    'privacy.clip': 'dp_clip',
    'privacy.noise_multiplier': 'dp_noise_multiplier',
    'privacy': 'dp_unit', 'privacy.noise_by': 'dp_noise_by',
    'privacy.quantile': 'dp_quantile', 'privacy.delta': 'dp_delta delta'})

# Name -> advice, if no single flag has this meaning.
ADVICE = by_word({
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
    "give --partition='dirichlet(beta=0.5)'": 'non_iid noniid niid',
    'give --model.dtype=bfloat16, or --model.precision=tf32':
        'fp16 bf16 amp use_amp half mixed_precision',
    "give --privacy='client(clip=1, noise_multiplier=1)'; the run prints its "
    'epsilon':
        'epsilon target_epsilon eps dp_epsilon',
    'give --loggers=wandb': 'wandb use_wandb log_wandb with_wandb',
    'give --loggers=tensorboard':
        'tensorboard use_tensorboard log_tensorboard tb',
    'give --loggers=mlflow': 'mlflow use_mlflow',
    'give --loggers=aim': 'aim use_aim',
    'give --loggers=csv': 'csv log_csv'})

def flag(name: str, known: Iterable[str]) -> str:
  """Returns the known flag that a name such as "lr" means, or ''.

  It may be an argument of a known flag, such as partition.beta, or have a
  value; see `FLAGS`.
  """
  by_letters = {letters(other): other for other in known}
  if letters(name) in by_letters:
    return by_letters[letters(name)]
  name = name.lower().replace('-', '_')
  synonym = FLAGS.get(name, '')
  argument = synonym.rpartition('.')[2]
  if argument in by_letters.values() and argument not in FACTS:
    return argument  # of a function, which has no parts
  meanings = {key: meant for key, meant in FLAGS.items()
              if re.split('[.=]', meant)[0] in by_letters.values()}
  if name in meanings or name in ADVICE:
    return meanings.get(name, '')
  found = near(name, [*by_letters.values(), *meanings])
  return meanings.get(found, found)


def with_value(meant: str, value: str) -> str:
  """Returns what `flag` has found with the value that was given, if any.

  Examples:
    >>> with_value('labels=noise(rate=...)', '0.1')
    "--labels='noise(rate=0.1)'"
  """
  name, equals, text = meant.partition('=')
  if name.endswith('.ARGUMENT') and '=' in value:  # such as lam=0.5
    return f'--{name.removesuffix("ARGUMENT")}{value}'
  if not equals:
    return f'--{name}={value}' if value else f'--{name}'
  given = parts.show(parts.parse_value(value)) if value else '...'
  return f'--{name}={shlex.quote(text.replace("...", given, 1))}'


def advice(name: str) -> str:
  """Returns what to do instead of giving a flag, or ''."""
  return ADVICE.get(name.lower().replace('-', '_'), '')


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
        f'got {given!r}{value(name, given, known) or colon(name, given)}')


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
      hint = f'did you mean {_in_python(near, is_config)}?' if near else (
          re.sub('--(?=[a-z])', '', advice(name)) if is_config else '')
      if hint:
        raise TypeError(f'{made.__name__} has no argument {name!r}; {hint}')
    return function(*args, **kwargs)

  if not isinstance(made, type):
    return checked  # type: ignore[return-value]
  made.__init__ = checked  # type: ignore[misc]
  return made


def _in_python(meant, is_config):
  """Returns what `flag` has found, as an argument in Python."""
  name, equals, text = meant.partition('=')
  kind, dot, argument = name.partition('.')
  if not (equals or dot):
    return meant
  if not is_config and kind != 'optimizer':  # parts are values there
    return f'{argument} of {kind}'
  call = f'NAME({argument}={text or "..."})' if dot else text
  return f'{kind}={call!r}'
