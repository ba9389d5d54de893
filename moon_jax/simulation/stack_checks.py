"""Checks that federations may train in one program."""

from collections.abc import Sequence

import numpy as np

from moon_jax.errors import UserError
from moon_jax.simulation import program_fields
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec

# Settings of the compiled program and of the devices.
_SETTINGS = ('optimizer', 'augment', 'augmentation_draws', 'eval_examples',
             'evaluate_clients', 'keep_local_models', 'lanes', 'shard_data')


def check(federations: Sequence[Federation]) -> None:
  """Checks that the first federation's program is that of all.

  Args:
    federations: two or more; from configurations, or made in Python with the
      same values of data, model and algorithm.

  Raises:
    UserError: naming the first setting that differs.
  """
  first = federations[0]
  for index, federation in enumerate(federations[1:], 1):
    for name in _SETTINGS:
      ours, theirs = getattr(first, name), getattr(federation, name)
      _require(ours == theirs, name, index, theirs, ours)
    sizes = [min(f.batch_size, max(map(len, f.clients)))
             for f in (first, federation)]
    _require(sizes[0] == sizes[1], 'batch_size', index, sizes[1], sizes[0])
    _require(federation.init_variables is first.init_variables,
             'init_variables', index)
    _require(_same_data(first, federation), 'data', index)
    if first.config and federation.config:
      keys = [program_fields.program_key(f.config) for f in (first, federation)]
      _require(keys[0] == keys[1], 'config', index)
      # Configurations make new functions; others may have replaced them.
      for name in 'model', 'algorithm':
        kinds = [list(map(_definition, getattr(f, name)))
                 for f in (first, federation)]
        _require(kinds[0] == kinds[1], name, index)
      continue
    _require(federation.model is first.model, 'model', index)
    functions = [f.algorithm._replace(hparams={}) for f in (first, federation)]
    _require(
        functions[0] == functions[1], 'algorithm', index,
        hint='; change its numbers with algorithm._replace(hparams=...)')


def check_specs(specs: Sequence[RoundSpec]) -> None:
  """Checks that rounds compute outputs of frozen models at the same time.

  Args:
    specs: for each federation the specification of its rounds alone.

  Raises:
    UserError: naming the first federation that differs.
  """
  for index, spec in enumerate(specs[1:], 1):
    _require(
        spec.program.freeze_once == specs[0].program.freeze_once,
        'reuse of frozen outputs', index, hint='. It depends on local_epochs '
        '(1 or more), augment, and on whether clients share examples')
    # Models of clients are evaluated where their examples are.
    _require(not (spec.shard_size and spec.program.keep_models),
             'device', index, hint=', since shard_data moves the examples on '
             'which local models are evaluated')


def _same_data(a, b):
  """Returns whether two federations train and test on equal examples."""
  noises = a.input_noise_std, b.input_noise_std
  return (a.data.train_inputs is b.data.train_inputs
          and a.data.test_inputs is b.data.test_inputs
          and all(np.array_equal(getattr(a.data, name), getattr(b.data, name))
                  for name in ('train_labels', 'test_labels', 'mean', 'std'))
          and (noises[0] is noises[1] or np.array_equal(*noises)))


def _definition(value):
  """Returns where a function is defined; None for other values."""
  function = getattr(value, 'func', value)  # of a functools.partial
  return (getattr(function, '__module__', None),
          getattr(function, '__qualname__', None)) if callable(value) else None


def _require(is_equal, name, index, got=None, expected=None, hint=''):
  if not is_equal:
    values = '' if got is None else f'; got {got!r} and {expected!r}'
    raise UserError(
        f'federations in one program must have the same {name}, that of number '
        f'{index} differs from that of number 0{values}{hint}. Train it in a '
        'program of its own')
