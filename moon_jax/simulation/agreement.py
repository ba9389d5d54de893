"""What the runs of one program must have in common.

The runs of a program share its compiled round, its data set and its devices.
Each run has its own row of the state, its own hyperparameters and its own rows
of the table. `shared_values` describes a run by values that are equal for runs
that may share a program. Sweeps group their runs by them; `check` refuses other
runs. `program_key` groups configurations before their data are split.
"""

from collections.abc import Hashable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import inspect
import pickle
import types
from typing import Any

import jax
import numpy as np

from moon_jax import optimizers
from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config, flags_with
from moon_jax.data import mapped
from moon_jax.errors import UserError
from moon_jax.methods import registry
from moon_jax.models import Model
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.round_spec import RoundSpec

# Why a flag may differ between the runs of a program: see
# `moon_jax.config.flags.Facts`.
_SPLIT = flags_with(varies='split')

# Settings of the compiled program and of the devices.
_SETTINGS = ('augment', 'debug', 'eval_examples',
             'evaluate_all', 'evaluate_clients', 'keep_local_models', 'lanes',
             'shard_data')

_FROZEN = 'reuse of frozen outputs'
_EVALUATED = 'device of local models'

_OF_FLAX = {'_id', '_parent_ref', '_state'}  # attributes of each linen module

_EMPTY = object()  # the content of an empty cell


class _Itself:
  """An object that is equal to itself only.

  It keeps the object alive: otherwise a later object could have the same
  address, and so the same `id`.
  """

  def __init__(self, x: Any):
    self._x = x

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Itself) and self._x is other._x

  def __hash__(self) -> int:
    return id(self._x)


class _Arrays:
  """A tree of arrays that is equal to itself and to trees of equal arrays.

  Elements are compared only if the objects differ, and objects are kept alive
  as in `_Itself`. Memory-mapped arrays, which may exceed the memory, are not
  compared.
  """

  def __init__(self, tree: Any):
    self._leaves, self._structure = jax.tree.flatten(tree)

  def _kinds(self):
    return self._structure, tuple(
        (np.shape(x), str(getattr(x, 'dtype', type(x)))) for x in self._leaves)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Arrays) and self._kinds() == other._kinds() and (
        all(x is y or _have_equal_bits(x, y)
            for x, y in zip(self._leaves, other._leaves)))

  def __hash__(self) -> int:
    return hash(self._kinds())


def _have_equal_bits(x, y):
  if mapped.is_mapped(x) or mapped.is_mapped(y):
    return False
  x, y = (np.atleast_1d(np.ascontiguousarray(array)) for array in (x, y))
  return x.dtype != object and np.array_equal(
      x.view(np.uint8), y.view(np.uint8))


# What to change, by name.
_REMEDIES = {
    'algorithm': 'Change its numbers with algorithm._replace(hparams='
                 '{**algorithm.hparams, ...}). ',
    'names of hyperparameters': (
        'Give Algorithm.hparams of all of them the same names. '),
    _FROZEN: 'It depends on whether local_epochs is above 1, on local_steps, '
             'augment, and on whether clients share examples. ',
    _EVALUATED: 'shard_data moves the examples on which local models are '
                'evaluated. '}


def program_key(config: Config) -> tuple:
  """Returns a hashable value that is equal for runs that can share a program.

  `moon_jax.simulation.checks.validate` has returned the configuration. Files
  count by their paths.
  """
  fields = config.to_dict()
  values = lambda names: tuple((name, fields[name]) for name in sorted(names))
  partition = config.partition.name
  seed = () if partition == 'file' else (config.split_seed(),)
  split = values(set(_SPLIT) - {'seed', 'partition_seed'}) + seed
  optimizer = optimizers.resolve(config.optimizer)
  shared: dict[str, Any] = dict(values(flags_with(varies=''))) | {
      'algorithm': _value(registry.make(config)),
      'topology': _value(registry.topology_of(config)),
      'optimizer': _value(optimizer._replace(hparams={})),
      # RoundProgram.freeze_once needs inputs that several epochs share.
      'local_epochs above 1': (
          config.local_epochs > 1 and not config.local_steps),
      # RoundProgram.keep_models, and evaluation programs.
      'client_eval_every above 0': config.client_eval_every > 0,
      'new_clients above 0': config.new_clients > 0,
      'debug': config.debug and config}  # alone in its program
  # RoundProgram.freeze_once also needs clients without common examples.
  if partition == 'file' or config.partition.is_own:
    shared['the split of a file or of your own'] = split
  if partition in ('feature_noise', 'rotated'):  # properties of examples
    shared['the inputs of clients'] = split
  if config.labels.name != 'clean' or config.attack.name == 'label_flip':
    shared['the labels of clients'] = (
        fields['labels'], fields['attack'], split)
  if config.attack.name == 'backdoor':  # its images are copies
    shared['the images of a backdoor'] = tuple(fields.items())
  return tuple(shared.items())


def shared_values(spec: RoundSpec) -> dict[str, Hashable]:
  """Returns what runs of a program must share, by name."""
  # Models of clients are evaluated where their examples are.
  is_alone = bool(spec.shard_size) and spec.program.keep_models
  return {**federation_values(spec.given),
          _FROZEN: spec.program.freeze_once,
          _EVALUATED: is_alone and object(),  # equal to no other
          'debug': spec.federation.debug and object()}


def federation_values(federation: Federation) -> dict[str, Hashable]:
  """Returns the part of `shared_values` that does not depend on devices."""
  data = federation.data
  return {
      **{name: getattr(federation, name) for name in _SETTINGS},
      'new_clients': len(federation.new_clients) > 0,
      'batch_size': min(federation.batch_size,
                        max(map(len, federation.all_clients))),
      'init_variables': _Arrays(federation.init_variables),
      'data': (_Arrays([data.train_inputs, data.test_inputs]), *map(_value, (
          data.train_labels, data.test_labels, data.mean, data.std,
          data.augmentation, data.task, federation.input_noise_std))),
      'model': _value(federation.model),
      'augmentation': _value(federation.augmentation),
      'optimizer': _value(federation.optimizer._replace(hparams={})),
      'algorithm': _value(federation.algorithm),
      'topology': _value(federation.topology),
      'names of hyperparameters': tuple(sorted(federation.hparams()))}


def trace_alike(a: Federation, b: Federation) -> bool:
  """Returns whether two runs on the same data have equal traces.

  See the argument `like` of `moon_jax.simulation.round_spec.make`.
  """
  facts = lambda x: _value((x.model, x.algorithm, x.evaluate_all))
  return a.hparams().keys() == b.hparams().keys() and facts(a) == facts(b)


def check(runs: Sequence[Mapping[str, Hashable]]) -> None:
  """Checks that all runs can share the program of the first run."""
  for index, run in enumerate(runs):
    for name, value in run.items():
      if value != (expected := runs[0][name]):
        is_setting = name in (*_SETTINGS, 'batch_size')
        got = f', {value!r} and {expected!r}' if is_setting else ''
        raise UserError(
            '', f'federations in one program must have the same {name}',
            f'another one for number {index} than for number 0{got}',
            f'{_REMEDIES.get(name, "")}Train it in a program of its own')


def _value(x: Any, outer: tuple[int, ...] = ()) -> Hashable:
  """Returns a value that is equal for two objects that compute the same.

  Functions are equal if their code is, all that they close over, and the module
  data that they use, directly or through functions of the same module.
  Hyperparameters of an algorithm do not count, since they are arrays in the
  program, nor does the origin of values. Objects without known contents are
  equal to no other. `outer` has the identities of the objects that contain `x`.
  """
  if id(x) in outer:
    return 'itself', outer[::-1].index(id(x))
  inner = functools.partial(_value, outer=(*outer, id(x)))
  if isinstance(x, Algorithm):
    return Algorithm, tuple(map(inner, x._replace(hparams={}, source='')))
  if isinstance(x, Model):
    return Model, tuple(map(inner, x._replace(source='')))
  if isinstance(x, functools.partial):
    return 'partial', inner(x.func), inner(x.args), inner(x.keywords)
  if isinstance(x, types.FunctionType):
    cells = [_content(cell) for cell in x.__closure__ or ()]
    return (x.__code__, _Itself(x.__globals__), tuple(_globals(
        x.__code__, x.__globals__, {x.__code__})), inner([
            x.__defaults__, x.__kwdefaults__, cells]))
  if isinstance(x, types.MethodType):
    return 'method', inner(x.__func__), inner(x.__self__)
  if isinstance(x, np.ndarray | np.generic | jax.Array):
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(
        x.dtype, jax.dtypes.prng_key):
      x = jax.random.key_data(x)
    x = np.asarray(x)
    return str(x.dtype), x.shape, x.tobytes()
  if isinstance(x, Mapping):
    return type(x), tuple((key, inner(value)) for key, value in x.items())
  if isinstance(x, tuple | list):
    return type(x), tuple(map(inner, x))
  if isinstance(x, set | frozenset):
    return type(x), frozenset(map(inner, x))
  if isinstance(x, type | types.ModuleType | types.BuiltinFunctionType):
    return x
  return _object_value(x, inner)


def _globals(code, variables, seen):
  """Yields hashes of the data of a module that code names, by their names.

  A factory may have set them for its run. The functions of the module that the
  code names are followed; `seen` has the codes that have been.
  """
  for name in code.co_names:
    value = variables.get(name)
    function = inspect.unwrap(value) if callable(value) else None
    if isinstance(function, types.FunctionType) and (
        function.__globals__ is variables):
      if function.__code__ not in seen:
        seen.add(function.__code__)
        yield from _globals(function.__code__, variables, seen)
    elif name in variables:
      try:
        yield name, hashlib.sha256(pickle.dumps(value)).digest()
      except Exception:  # no data, such as a module
        pass
  for constant in code.co_consts:  # such as functions in the function
    if isinstance(constant, types.CodeType):
      yield from _globals(constant, variables, seen)


def _content(cell):
  try:
    return cell.cell_contents
  except ValueError:  # the variable has not been assigned
    return _EMPTY


def _object_value(x, inner):
  names = getattr(x, '__dict__', {}).keys()
  if dataclasses.is_dataclass(x):  # such as a module of Flax
    # A subclass may have attributes that are no fields.
    names = {field.name for field in dataclasses.fields(x)} | names - _OF_FLAX
  elif hasattr(x, '__wrapped__'):  # such as the result of jax.jit
    # Others have more than one function, as jax.custom_vjp.
    return type(x), inner(x.__wrapped__), inner(getattr(x, '__dict__', None))
  elif type(x).__eq__ is not object.__eq__ or not names:
    try:
      hash(x)
    except TypeError:
      return _Itself(x)
    return type(x), x
  return type(x), tuple(
      (name, inner(getattr(x, name, None))) for name in sorted(names))
