"""Suggests flags and values for names that do not exist.

The names are those that users of the code released with MOON, NIID-Bench,
Flower, FL-bench, PFLlib and FedML give, if they have one clear meaning and a
search for similar names would not find it. Error messages suggest what they
mean; the names are not accepted.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
import inspect
import shlex
from typing import Any, TypeVar

from moon_jax.config import parts
from moon_jax.config.flags import FACTS, HUGGINGFACE, LOGGERS, PARTS
from moon_jax.config.kinds import KINDS
from moon_jax.config.spelling import (
  by_word,
  colon,
  FLAGS,
  is_user_code,
  letters,
  near,
  remedy,
)
from moon_jax.errors import require, setting, UserError

_Made = TypeVar('_Made', bound=Callable[..., Any])


# Name elsewhere -> advice as a function, if no single flag has this meaning.
ADVICE = by_word({
    lambda: 'JAX uses all GPUs that it finds; set CUDA_VISIBLE_DEVICES=0 to '
            'use the first, or JAX_PLATFORMS=cpu to use none':
        'gpu gpus device use_cuda',
    lambda: f'give {setting("participation")}, the fraction of clients per '
            f'round: with {setting("num_clients", 100)}, '
            f'{setting("participation", 0.1)} samples 10':
        'clients_per_round client_num_per_round',
    lambda: 'the same command resumes a run': 'resume',
    lambda: f'give {setting("partition", "iid")}': 'iid',
    lambda: f"give {setting('partition')}='dirichlet(beta=0.5)'": 'noniid',
    lambda: f"give {setting('privacy')}='client(clip=1, noise_multiplier=1)'; "
            'the run prints its epsilon': 'epsilon',
    **{lambda name=name: f'give {setting("loggers", name)}': name
       for name in LOGGERS}})


# Setting of a run -> where it is in Python, if a function does not take it.
_ELSEWHERE = {
    'dataset': 'Give data=moon_jax.load_dataset(...)',
    'partition': 'Give clients=moon_jax.partition.dirichlet(...)',
    'schedule': 'Give a function of the round as learning_rate',
    'cohort': 'Give rounds, a value of moon_jax.rounds',
    'clock': 'Give rounds, a value of moon_jax.rounds',
    'num_clients': 'There are as many as clients',
    'num_rounds': 'moon_jax.Simulation(federation).rounds(NUM_ROUNDS) takes it',
    'participation': 'Give rounds=moon_jax.rounds.sampled(...)'}


def flag(name: str, known: Iterable[str]) -> str:
  """Returns the known flag that a name such as "lr" means, or ''.

  It may be an argument of a known flag, such as partition.beta; see `FLAGS`.
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
              if meant.partition('.')[0] in by_letters.values()}
  if name in meanings or name in ADVICE:
    return meanings.get(name, '')
  if {*PARTS} <= {*by_letters.values()}:
    of_kind = name.replace('_', '.', 1)  # algorithm_mu
    for place in _arguments():
      if of_kind == place or name == place.partition('.')[2]:
        return place
  nearest = near(name, [*by_letters.values(), *meanings])
  return meanings.get(nearest, nearest)


@functools.cache
def _arguments():
  """Returns KIND.ARGUMENT for each argument of the built-in functions."""
  return [*dict.fromkeys(
      f'{kind}.{argument}' for kind in PARTS
      for function in KINDS[kind].functions  # which imports their modules
      for argument in parts.schema(kind, function))]


def with_value(flag: str, value: str) -> str:
  """Returns the flag that is meant with a value that it takes.

  Examples:
    >>> with_value('learning_rate', '0.1'), with_value('labels', '0.1')
    ('--learning_rate=0.1', "--labels='noise(rate=0.2)'")
  """
  if flag in PARTS and value:
    try:
      parts.function_of(flag, parts.parse(flag, value))
    except UserError:
      value = shlex.quote(KINDS[flag].example)
  return f'--{flag}={value}' if value else f'--{flag}'


def advice(name: str) -> str:
  """Returns what to do instead of giving a flag, or ''."""
  return ADVICE.get(name.lower().replace('-', '_'), str)()


def check_names(name: str, given: object, known: Sequence[str],
                form: str) -> None:
  """Checks the value of a flag that takes names and custom values.

  `known` are the names, and `form` is the form of a custom value.

  Raises:
    UserError: if it is neither a built-in name nor custom.
  """
  call = parts.written_dataset_call(given) if name == 'dataset' else None
  if call and call.name in known:
    require(call.name in KINDS['dataset'].functions, f'dataset={call.name}',
            'takes no arguments', repr(given),
            f'Give {setting("dataset", call.name)}')
  if call and parts.dataset_call(given):
    return
  is_valid = isinstance(given, str) and (
      given in known or is_user_code(given)
      or name == 'dataset' and given.startswith(HUGGINGFACE))
  if not is_valid:
    raise UserError(
        name, f'must be one of {", ".join(known)}, or your own as {form}',
        repr(given), remedy(name, given, known) or colon(name, given))


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
      is_setting = name in FACTS and not is_config
      near = '' if is_setting else flag(name, known)
      hint = f'Did you mean {_in_python(near, is_config)}?' if near else (
          _ELSEWHERE.get(name, 'moon_jax.Config has it') if is_setting else
          advice(name) if is_config else '')
      if hint:
        raise TypeError(f'{made.__name__} has no argument {name!r}. {hint}')
    return function(*args, **kwargs)

  if not isinstance(made, type):
    return checked  # type: ignore[return-value]
  made.__init__ = checked  # type: ignore[misc]
  return made


def _in_python(meant, is_config):
  """Returns the result of `flag` as an argument in Python."""
  kind, dot, argument = meant.partition('.')
  if not dot:
    return meant
  if not is_config and kind != 'optimizer':  # parts are values there
    return f'{argument} of {kind}'
  return f"{kind}='NAME({argument}=...)'"
