"""Custom algorithms: --algorithm=MODULE:FACTORY, or a value in Python."""

from collections.abc import Iterable, Iterator, Mapping
import functools
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp

from moon_jax import debugging, errors, trees, user_code
from moon_jax.algorithms import base
from moon_jax.algorithms.base import Algorithm, Batch, LossAux, Message
from moon_jax.config import spelling
from moon_jax.config.methods import TAKEN
from moon_jax.errors import setting, UserError
from moon_jax.methods import fedavg
from moon_jax.models import Model
from moon_jax.models import user as user_model

# Of what must be returned.
_FREE = ('metrics with other names than those that moon_jax records itself '
         '(docs/metrics.md lists them)')


def checked(name: str, algorithm: Any) -> Algorithm:
  """Returns what your own factory has returned, if it is an algorithm."""
  if not isinstance(algorithm, Algorithm):
    raise UserError(
        f'algorithm={name}', 'must return a moon_jax.Algorithm, such as '
        'fedavg()._replace(...)', type(algorithm).__name__)
  check_hparams(algorithm.hparams, f'{setting("algorithm", name)}: ')
  return algorithm


def check_hparams(hparams: Any, source: str = '') -> None:
  """Checks that hyperparameters are finite numbers by name.

  Messages begin with `source`.
  """
  if not isinstance(hparams, Mapping):
    raise UserError(
        '', f'{source}Algorithm.hparams must be a dict of numbers by name',
        user_model.kind_of(hparams))
  for name, value in hparams.items():
    try:
      is_valid = not isinstance(value, str) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
      is_valid = False
    if not is_valid:
      raise UserError(
          '', f'{source}Algorithm.hparams[{name!r}] must be a finite number',
          repr(value), 'Functions can close over other values')


def check(algorithm: Algorithm, model: Model, example: jax.Array, labels: Any,
          num_classes: int = 0, hparams: Iterable[str] = ()) -> None:
  """Traces each function once and checks the type of its result.

  Args:
    algorithm: to check.
    model: the network.
    example: a normalized batch of one input.
    labels: of this batch, an array.
    num_classes: whose examples `View.label_counts` counts.
    hparams: names of those of the local optimizer.

  Raises:
    UserError: naming the function, what it must return and what it returned;
      or the outputs that it needs and the network leaves out. For a value of
      --algorithm also if its code fails; for a value in Python the error of the
      code propagates.
  """
  name = errors.setting('algorithm', algorithm.source) if (
      algorithm.source) else 'algorithm'
  at = lambda function: user_code.place(getattr(algorithm, function))
  for function, default in fedavg.fedavg()._asdict().items():
    if callable(default):
      _check_arguments(f'{name}: {function}', getattr(algorithm, function),
                       inspect.signature(default), at(function))

  def trace(model, key):
    for function, words, problem in _results(
        algorithm, model, example, labels, num_classes, hparams, key):
      if problem:
        raise UserError('', f'{name}: {function} must return {words}',
                        f'{problem}{at(function)}')

  traced = lambda model: debugging.eval_shape(
      functools.partial(trace, model), jax.random.key(0))
  own = spelling.custom_name(algorithm.source)
  try:
    if own:
      user_code.call('algorithm', own, traced, model)
    else:
      traced(model)
  except Exception as error:
    if 'None' not in str(error):  # no missing output was used
      raise
    try:
      traced(user_model.watched(model))
    except user_model.MissingOutput as missing:
      raise UserError(
          '', f'{name} needs the {missing} of the network, which leaves it out',
          '', 'Return moon_jax.Outputs(features=h, projection=z, '
          f'logits=logits){model.place}. Without projection, z is h') from None
    except Exception:
      raise error from None
    raise


def reads_partners(algorithm: Algorithm, model: Model, example: jax.Array,
                   labels: Any, num_classes: int = 0,
                   hparams: Iterable[str] = ()) -> bool:
  """Returns whether the loss reads the labels of mixup's partners.

  Arguments are those of `check`, which has accepted the algorithm. An error is
  left to the round, which reports where it is.
  """
  read = []

  class Watched(Batch):
    mixed = property(lambda self: self[-1])

    def __getitem__(self, key):
      read.append(key)
      return super().__getitem__(key)

    def __iter__(self):
      read.append(None)
      return super().__iter__()

  labels = jnp.asarray(labels)
  batch = Batch(example, labels, jnp.ones(1), mixed=(labels, jnp.float32(1)))
  try:
    debugging.eval_shape(lambda key: _first_gradient(
        algorithm, model, batch, num_classes, hparams, key, Watched),
                         jax.random.key(0))
  except Exception:
    return True
  return bool(read)


def reads_mask(algorithm: Algorithm, model: Model, example: jax.Array,
               labels: Any, num_classes: int = 0, hparams: Iterable[str] = ()
               ) -> bool:
  """Returns whether the gradient depends on the mask of a batch.

  Arguments and errors are those of `reads_partners`. A network that takes the
  mask may be all that reads it.
  """
  def gradient(mask_B):
    batch = Batch(example, jnp.asarray(labels), mask_B)
    return _first_gradient(algorithm, model, batch, num_classes, hparams,
                           jax.random.key(0), Batch)

  try:
    jaxpr = jax.make_jaxpr(gradient)(jnp.ones(1)).jaxpr
  except Exception:
    return True
  needed = {*map(id, jaxpr.outvars)}
  for equation in reversed(jaxpr.eqns):
    if not needed.isdisjoint(map(id, equation.outvars)):
      needed.update(map(id, equation.invars))
  return id(jaxpr.invars[0]) in needed


def _first_gradient(algorithm, model, batch, num_classes, hparams, key, kind):
  """Returns the gradient of a first step; its batch is of the class `kind`."""
  view = base.first_view(
      algorithm, model.init(key, batch.inputs), num_classes, hparams)
  model = model.with_key(key)
  started = algorithm.start(base.with_examples(
      algorithm, view, model, base.Examples(
          lambda s: batch._replace(mixed=None), jnp.int32(1))))
  batch = kind(*batch._replace(
      frozen=algorithm.frozen(model, batch, view), key=key))
  return algorithm.gradient(
      lambda params, batch: algorithm.loss(
          model, {**started, 'params': params}, batch, view),
      started['params'], batch, view)[1]


def _results(algorithm: Algorithm, model: Model, example: jax.Array,
             labels: Any, num_classes: int, hparams: Iterable[str],
             key: jax.Array) -> Iterator[tuple[str, str, str]]:
  """Calls the functions in turn.

  Yields:
    A function, what it must return, and what differs in its result, else ''.
    The caller must not continue after a difference.
  """
  variables = model.init(key, example)
  server = algorithm.init_server(variables)
  view = base.first_view(algorithm, variables, num_classes, hparams)
  batch = Batch(example, jnp.asarray(labels), jnp.ones(1))
  reading = base.with_examples(
      algorithm, view, model.with_key(key),
      base.Examples(lambda s: batch, jnp.int32(1)))
  started = algorithm.start(reading)
  has_params = isinstance(started, dict) and 'params' in started
  yield ('start', "a dict with 'params', such as the global model or the "
         'result of moon_jax.models.joint.join',
         '' if has_params else f'{trees.shapes(started)}')
  frozen = algorithm.frozen(model, batch, view)
  has_rows = all(jnp.shape(x)[:1] == (1,) for x in jax.tree.leaves(frozen))
  yield ('frozen', 'arrays with one row per example',
         '' if has_rows else f'{trees.shapes(frozen)} for one example')
  batch = batch._replace(frozen=frozen, key=key)
  loss = algorithm.loss(model.with_key(key), started, batch, view)
  for words, problem in _results_of_loss(loss, started):
    yield 'loss', words, problem
  yield from _results_of_step(
      algorithm, model.with_key(key), started, batch, view)
  for name in 'local_model', 'personal_model':
    if function := getattr(algorithm, name):
      yield (name, 'variables like the global model', trees.difference(
          function(started, reading), variables))
  finished = algorithm.finish(started, reading)
  yield ('finish', 'a pair, the new client state and a Message',
         _no_pair(finished, Message))
  client, message = finished
  yield ('finish', 'a client state like the one of init_client',
         trees.difference(client, view.client))
  yield from _results_of_server(algorithm, message, variables, server, view,
                                key, loss[1].metrics)


def _results_of_step(algorithm, model, started, batch, view):
  """Yields what functions of a local step must return; see `_results`."""
  params = started['params']
  if user_code.place(algorithm.gradient):  # not one of the package
    objective = lambda params, batch: algorithm.loss(
        model, {**started, 'params': params}, batch, view)
    result = algorithm.gradient(objective, params, batch, view)
    is_pair = isinstance(result, (tuple, list)) and len(result) == 2
    yield ('gradient', 'a pair, the result of the objective and the gradient',
           '' if is_pair else trees.shapes(result))
    for words, problem in _results_of_loss(result[0], started):
      yield 'gradient', f'first the result of the objective, {words}', problem
    yield ('gradient', 'a gradient like the parameters',
           trees.difference(result[1], params))
  if algorithm.trains:
    yield ('trains', 'a tree of bool scalars with the structure of the '
           'parameters, or a prefix of it', _no_prefix(
               algorithm.trains(params, batch, view), params))
  yield ('transform_grads', 'a tree like its gradient', trees.difference(
      algorithm.transform_grads(params, view), params))
  yield ('transform_updates', 'a tree like its updates', trees.difference(
      algorithm.transform_updates(params, batch, view), params))


def _results_of_server(algorithm, message, variables, server, view, key,
                       of_loss):
  """Yields what `aggregate` must return; see `_results`."""
  following = algorithm.aggregate(
      variables, server, base.as_received(message),
      base.ServerCall(view.hparams, key, view.round))
  is_triple = (isinstance(following, tuple) and len(following) == 3
               and isinstance(following[2], dict))
  yield ('aggregate', 'three results, the next variables, the next server '
         'state and a dict of metrics, {} for none',
         '' if is_triple else f'{trees.shapes(following)}')
  yield ('aggregate', 'numbers and arrays by names as metrics',
         _no_metrics(following[2]))
  yield 'aggregate', _FREE, _taken(following[2])
  yield ('aggregate', 'metrics with other names than those of the loss',
         ', '.join(sorted({*of_loss} & {*following[2]})))
  difference = trees.difference(following[0], variables)
  if difference and algorithm.aggregate.__module__ == fedavg.__name__:
    yield ('finish', 'a Message whose mean is like the global model, since '
           'aggregate is that of FedAvg',
           f'{trees.difference(message.mean, variables)}. If clients train '
           'several models, send one: mj.joint.part(trained, NAME)')
  yield ('aggregate', 'variables like the global model as its first result',
         difference)
  yield ('aggregate', 'a server state like the one of init_server as its '
         'second result', trees.difference(following[1], server))


def _results_of_loss(loss, started):
  """Yields what the loss must return, and what differs; see `_results`."""
  yield ('a pair, a scalar and a LossAux(variables, metrics)',
         _no_pair(loss, LossAux))
  value, (variables, metrics) = loss
  yield ('a scalar as its first result (see losses.masked_mean)',
         trees.difference(value, jnp.float32(0)))
  yield ('variables in its LossAux like those that it receives',
         trees.difference(variables, started))
  others = metrics if not isinstance(metrics, Mapping) else {
      name: x for name, x in metrics.items()
      if not trees.is_array(x) or jnp.shape(x)}
  is_valid = isinstance(others, Mapping) and not others
  yield ('scalars as the metrics of its LossAux, whose means over local steps '
         'are recorded, each by a name of its own',
         '' if is_valid else f'{trees.shapes(others)}')
  yield _FREE, _taken(metrics)


def _taken(metrics):
  """Returns the names of metrics that moon_jax has, or ''."""
  return ', '.join(name for name in metrics if isinstance(name, str)
                   and TAKEN.fullmatch(name))


def _no_metrics(metrics):
  """Returns the metrics that are no numbers or arrays with a name, or ''."""
  return ', '.join(repr(name) for name, x in metrics.items() if not isinstance(
      name, str) or not all(map(trees.is_array, jax.tree.leaves(x))))


def _no_prefix(is_trained, params):
  """Returns what is no tree of bool scalars for the parameters, or ''."""
  try:
    is_valid = not trees.difference(jax.tree.broadcast(is_trained, params),
                                    jax.tree.map(lambda x: True, params))
  except ValueError:  # another structure
    is_valid = False
  return '' if is_valid else f'{trees.shapes(is_trained)}'


def _no_pair(result, second=object):
  """Returns what is not a pair whose second element has a type, or ''."""
  is_pair = (isinstance(result, tuple) and len(result) == 2
             and isinstance(result[1], second))
  return '' if is_pair else f'{trees.shapes(result)}'


def _check_arguments(name, function, expected, place):
  """Checks that a function takes the arguments of FedAvg's."""
  try:
    signature = inspect.signature(function)
    signature.bind(*expected.parameters)
  except ValueError:  # some built-in functions: the call will show
    return
  except TypeError as error:
    got = signature if callable(function) else repr(function)
    raise UserError('', f'{name} must be a function of {expected}',
                    f'{got}: {error}{place}') from error
