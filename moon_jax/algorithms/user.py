"""Algorithms of users' own: --algorithm=MODULE:FACTORY."""

import ast
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from moon_jax import user_code
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import Batch
from moon_jax.algorithms.base import first_view
from moon_jax.algorithms.base import LossAux
from moon_jax.algorithms.base import Message
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.models import Model

_MAX_CHARACTERS = 200  # characters of a tree


def make(config: Config) -> Any:
  """What the factory returns for `config` and --algorithm_args.

  Raises:
    UserError: where there is no such factory, it does not take these
      arguments, or its code fails.
  """
  factory = user_code.load('algorithm', config.algorithm)
  args = _parse(config.algorithm_args)
  try:
    signature = inspect.signature(factory)
  except (TypeError, ValueError) as error:  # of what is built in
    raise UserError(f'--algorithm={config.algorithm} cannot be called '
                    f'({error}); name a function of the configuration'
                    ) from error
  try:
    signature.bind(config, **args)
  except TypeError as error:
    raise UserError(
        f'--algorithm_args={config.algorithm_args}: {error}; '
        f'{config.algorithm.rpartition(":")[2]}{signature} is what --algorithm='
        f'{config.algorithm} takes, the configuration first') from error
  return user_code.call(
      'algorithm', config.algorithm, factory, config, **args)


def check(config: Config, algorithm: Algorithm, model: Model,
          example: jax.Array) -> None:
  """Traces each function once, and tells what returns the wrong thing.

  Errors within the user's functions are raised as they are.

  Raises:
    UserError: naming the function, what it must return, and what it does.
  """
  def expect(function, found, expected, words):
    describe = lambda tree: jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    if describe(found) != describe(expected):
      raise UserError(
          f'--algorithm={config.algorithm}: {function} must return {words}; '
          f'got {_short(found)}, expected {_short(expected)}')

  def pair(function, found, second):
    if not (isinstance(found, tuple) and len(found) == 2
            and (second is None or isinstance(found[1], second))):
      raise UserError(
          f'--algorithm={config.algorithm}: {function} must return two things, '
          f'{_PAIRS[function]}; got {_short(found)}')
    return found

  def trace(key):
    variables = model.init(key, example)
    server = algorithm.init_server(variables)
    view = first_view(algorithm, variables)
    started = algorithm.start(view)
    expect('start', started, variables, 'variables like the global model')
    batch = Batch(example, jnp.zeros(1, jnp.int32), jnp.ones(1))
    frozen = algorithm.frozen(model, batch, view)
    if any(jnp.shape(x)[:1] != (1,) for x in jax.tree.leaves(frozen)):
      raise UserError(
          f'--algorithm={config.algorithm}: frozen must return arrays with a '
          f'row for each example; got {_short(frozen)} of one example')
    batch = batch._replace(frozen=frozen)
    loss, aux = pair(
        'loss', algorithm.loss(model, started, batch, view), LossAux)
    expect('loss', loss, jnp.float32(0),
           'a scalar first (losses.masked_mean makes one)')
    expect('loss', aux.variables, variables, 'the variables in its LossAux')
    grads = algorithm.transform_grads(variables['params'], view)
    expect('transform_grads', grads, variables['params'],
           'a tree like its gradient')
    kept, message = pair('finish', algorithm.finish(started, view), Message)
    expect('finish', kept, view.client, 'first what init_client returns')
    moved, state = pair(
        'aggregate', algorithm.aggregate(variables, server, message), None)
    expect('aggregate', moved, variables, 'first variables like the model')
    expect('aggregate', state, server, 'second what init_server returns')

  jax.eval_shape(trace, jax.random.key(0))


_PAIRS = {
    'loss': 'a scalar and a LossAux(variables, metrics)',
    'finish': 'what the client keeps and a Message',
    'aggregate': 'the next variables and what the server keeps',
}


def _short(tree) -> str:
  """Shapes by name, as much of them as a line takes."""
  text = str(jax.tree.map(lambda x: list(jnp.shape(x)), tree))
  return text if len(text) < _MAX_CHARACTERS else f'{text[:_MAX_CHARACTERS]}...'


def _parse(text: str) -> dict[str, Any]:
  """name=value pairs; values are Python literals, else words."""
  try:
    call = ast.parse(f'f({text})', mode='eval').body
    if call.args or not all(keyword.arg for keyword in call.keywords):
      raise ValueError('a value without a name')
    names = [keyword.arg for keyword in call.keywords]
    if len(set(names)) < len(names):
      raise ValueError('a name twice')
    return {keyword.arg: keyword.value.id
            if isinstance(keyword.value, ast.Name)
            else ast.literal_eval(keyword.value) for keyword in call.keywords}
  except (SyntaxError, ValueError, AttributeError, RecursionError) as error:
    raise UserError(
        f'--algorithm_args={text} is not name=value, apart by commas, of '
        f'numbers, words or other Python literals ({error})') from error
