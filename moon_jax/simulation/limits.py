"""Limits of single settings, shared by configurations and by values in Python.

Each table maps the name of a setting to its limit and a hint for the error
message. `check` applies the entries that an object has.
"""

import dataclasses
import math
import typing
from typing import Any
from typing import SupportsIndex

from moon_jax.config import suggest
from moon_jax.errors import UserError

_TINY, _HUGE = 1e-30, 1e30  # range of float32 arithmetic
_MAX_INT = 10**6
MAX_SEED = 2**32 - 1  # numpy's legacy generator takes 32 bits

_AT_LEAST = {
    'num_clients': (1, 'The paper uses --num_clients=10.'),
    'noise_std': (0, 'NIID-Bench uses --noise_std=0.1.'),
    'shards_per_client': (1, 'McMahan et al. use 2.'),
    'num_negatives': (1, 'The paper uses --num_negatives=1; --algorithm=fedavg '
                      'has no contrastive loss.'),
    'projection_dim': (1, 'The paper uses --projection_dim=256; '
                       '--noprojection_head leaves the head out.'),
    'num_rounds': (1, 'The paper uses --num_rounds=100.'),
    'local_epochs': (1, 'The paper uses --local_epochs=10.'),
    'batch_size': (1, 'The paper uses --batch_size=64.'),
    'weight_decay': (0, 'The paper uses --weight_decay=1e-5.'),
    'early_stopping': (0, '--early_stopping=0 trains all rounds.'),
    'eval_every': (1, '--eval_every=1 evaluates after each round.'),
    'client_eval_every': (0, '--client_eval_every=0 evaluates no clients.'),
    'train_examples': (0, '--train_examples=0 uses the whole training set.'),
    'eval_examples': (0, '--eval_examples=0 uses the whole test set.'),
    'checkpoint_every': (0, '--checkpoint_every=0 saves no checkpoints.'),
    'checkpoint_keep': (1, 'With --checkpoint_keep=2 a run survives one '
                        'damaged checkpoint.'),
    'checkpoint_keep_every': (0, '0 keeps only the newest.'),
    'lanes': (0, '--lanes=0 chooses automatically.'),
    'decay_rounds': (0, 'It is for --learning_rate_schedule=step.'),
    'warmup_rounds': (0, '--warmup_rounds=0 has no warm-up.'),
    'gradient_clip': (0, '--gradient_clip=0 does not clip.'),
    'planned_rounds': (1, 'None if they are not known.'),
    'seed': (0, f'Seeds range from 0 to {MAX_SEED}.'),
    'partition_seed': (-1, '-1 uses --seed.'),
    'proximal_mu': (0, '--proximal_mu=0 adds no proximal term.'),
    'concept_shift': (1, '--concept_shift=1 shifts no labels.'),
}

_ABOVE_0 = {
    'beta': 'The paper uses --beta=0.5; smaller values are more uneven.',
    'temperature': 'The paper uses --temperature=0.5.',
    'server_learning_rate': '--server_learning_rate=1 is FedAvg.',
    'learning_rate': 'The paper uses --learning_rate=0.01.',
    'learning_rate_decay': '--learning_rate_decay=0.1 is usual.',
}

# At least 0 and below 1.
_FRACTIONS = {
    'momentum': '--momentum=0.9 is usual',
    'server_momentum': '--server_momentum=0.9 is usual',
    'dropout_rate': '--dropout_rate=0 drops no client',
    'client_test_fraction': '--client_test_fraction=0.2 is usual; 0 holds out '
                            'no examples',
    'validation_fraction': '--validation_fraction=0.1 is usual',
    'label_noise': '--label_noise=0 changes no label',
}


def check(settings: Any) -> None:
  """Checks each field of a dataclass by its type and its entries here.

  Fields whose metadata has "choices" must be one of them.

  Raises:
    UserError: naming the first field with an invalid value, its value and a
      remedy.
  """
  hints = typing.get_type_hints(type(settings))
  for field in dataclasses.fields(settings):
    value, name = getattr(settings, field.name), field.name
    kind = int if hints[name] == int | None and value is not None else (
        hints[name])
    if kind in (str, int, float, bool):
      _check_type(name, value, kind, field.metadata.get('choices'))
      _check_range(name, value, field)
    choices = field.metadata.get('choices')
    if choices and value not in choices:
      raise UserError(
          f'--{name} must be one of {", ".join(choices)}; got {value!r}'
          f'{suggest.value(name, value, choices)}')
  for name, value, (least, hint) in _entries(_AT_LEAST, settings):
    if value < least:
      raise UserError(f'--{name} must be at least {least}; got {value}. {hint}')
  for name, value, hint in _entries(_ABOVE_0, settings):
    if value <= 0:
      raise UserError(f'--{name} must be above 0; got {value}. {hint}')
  for name, value, hint in _entries(_FRACTIONS, settings):
    if not 0 <= value < 1:
      raise UserError(f'--{name} must be at least 0 and below 1; got {value}. '
                      f'{hint}')


def check_rounds(num_rounds: Any, eval_every: Any) -> None:
  """Checks the arguments of a loop over rounds.

  Raises:
    UserError: naming the argument, its value and a remedy.
  """
  for name, value, least, hint in (
      ('num_rounds', num_rounds, 0, 'rounds(10) trains ten rounds'),
      ('eval_every', eval_every, 1, 'eval_every=1 evaluates each round')):
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or (
        int(value) < least):
      raise UserError(f'{name} must be an integer of at least {least}; got '
                      f'{value!r}. {hint}')


def _entries(table, settings):
  """Returns (name, value, entry) for the settings in a table that are numbers.
  """
  values = vars(settings)
  return [(name, values[name], entry) for name, entry in table.items()
          if isinstance(values.get(name), int | float)]


def _check_type(name, value, kind, choices):
  """Accepts values that equal one of the type, and NaN as a float.

  The range of floats excludes NaN. Integers must have an integer type: ranges
  and shapes of arrays take no floats.
  """
  try:
    is_valid = isinstance(value, str) == (kind is str) and (
        kind(value) == value or (kind is float and math.isnan(value)))
    is_valid &= kind is not int or isinstance(value, SupportsIndex)
  except (TypeError, ValueError, OverflowError):
    is_valid = False
  if not is_valid:
    article = 'an' if kind is int else 'a'
    hint = ('. Pass functions and other values to moon_jax.Federation'
            if callable(value) else
            f'. Pass {name}={int(value)}'
            if isinstance(value, float) and value.is_integer() else '')
    known = f', one of {", ".join(choices)}' if choices else ''
    raise UserError(f'--{name} must be {article} {kind.__name__}{known}; got '
                    f'{value!r}{hint}')


def _check_range(name, value, field):
  is_float = isinstance(field.default, float)
  if is_float and value and not _TINY <= abs(value) <= _HUGE:
    raise UserError(
        f'--{name} must be 0 or between {_TINY} and {_HUGE} in size; got '
        f'{value}. The default is --{name}={field.default}')
  is_int = isinstance(field.default, int) and not isinstance(
      field.default, bool)
  if is_int and 'seed' not in name and value > _MAX_INT:
    raise UserError(f'--{name} must be at most {_MAX_INT}; got {value}. '
                    f'The default is --{name}={field.default}')
  if 'seed' in name and value > MAX_SEED:
    raise UserError(f'--{name} must be at most {MAX_SEED}; got {value}. '
                    f'--{name}=0 is usual.')
