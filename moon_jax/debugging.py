"""Runs a federation in plain Python, for --debug.

In a `session` jit is disabled and `vmap` is a loop: the engine calls the same
functions in the same order as in the compiled program, with values.
"""

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import functools
import inspect
import io
import pathlib
import sys
import sysconfig
import traceback
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import errors, platforms
from moon_jax.errors import StageError, UserError

_MAX_ARRAYS = 8  # of an argument that a message lists
_LIBRARIES = {pathlib.Path(__file__).parent, *(
    pathlib.Path(sysconfig.get_path(name)) for name in ('stdlib', 'platlib'))}
_IN_STEPS = ('loss', 'gradient', 'transform_grads', 'transform_updates',
             'trains')
_is_tracer = lambda x: isinstance(x, jax.core.Tracer)
_fields = lambda x: getattr(x, '_fields', ()) if isinstance(x, tuple) else ()
# What must be finite of the result of a function, by name; otherwise all.
_RESULTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    'loss': lambda x: {'the loss': x[0]},
    'gradient': lambda x: {'gradient': x[1]},
    'aggregate': lambda x: {'variables': x[0], 'server state': x[1]}}
# The part of the simulation that runs, the last local step, and by client, None
# for the server, the first array that was not finite: all in words.
_SESSION: contextvars.ContextVar[Any] = contextvars.ContextVar(
    'session', default=None)


@contextlib.contextmanager
def session(is_on: bool, what: str = 'the check before round 1, on one example'
            ) -> Iterator[None]:
  """Runs its body in plain Python, if it is on; `what` is in error messages.

  If it is off, errors of the user's code get a note that recommends it.
  """
  token = _SESSION.set(types.SimpleNamespace(
      what=what, step='', not_finite={}) if is_on else None)
  try:
    with contextlib.ExitStack() as stack:
      if is_on:
        stack.enter_context(jax.disable_jit())
        stack.enter_context(platforms.float32_products())
      yield
  except StageError as error:  # without the frames of JAX and of the engine
    raise StageError('', str(error)) from None
  except Exception as error:
    if not (is_on or isinstance(error, UserError)) and _user_frames(error):
      error.add_note(f'{errors.setting("debug", True)} runs in plain Python '
                     'and names the function, its arguments and the client')
    raise
  finally:
    _SESSION.reset(token)


def is_on() -> bool:
  """Returns whether a session is open."""
  return _SESSION.get() is not None


def vmap(function: Callable, in_axes: tuple = (0,), out_axes: Any = 0
         ) -> Callable:
  """Returns `jax.vmap`, or a loop in a session; axes are 0 or None."""
  over = functools.partial(jax.tree.map, is_leaf=lambda axis: axis is None)

  def mapped(*args):
    if not is_on():
      return jax.vmap(function, in_axes, out_axes)(*args)
    first, *_ = jax.tree.leaves(over(
        lambda axis, x: () if axis is None else x, in_axes, args))
    rows = [function(*over(lambda axis, x: x if axis is None else jax.tree.map(
        lambda x: x[i], x), in_axes, args)) for i in range(len(first))]
    return over(lambda axis, *x: x[0] if axis is None else jax.tree.map(
        lambda *x: jnp.stack(x), *x), out_axes, *rows)

  return mapped


def eval_shape(function: Callable, *args: Any) -> Any:
  """Returns `jax.eval_shape`; in a session errors are those with values."""
  try:
    return jax.eval_shape(function, *args)
  except Exception as error:
    if is_on() and (not isinstance(error, UserError)
                    or isinstance(error, StageError)):
      function(*args)
    raise  # it fails only without values, or names the function


def watch(functions: Any) -> Any:
  """Returns a named tuple whose functions are `watched`, by their names."""
  return functions._replace(**{
      name: watched(name, x) for name, x in functions._asdict().items()
      if callable(x)})


def watched(stage: str, function: Callable) -> Callable:
  """Returns a function that reports errors and NaN in a session.

  Where JAX differentiates it, it is called with values first. A StageError
  names stage, round, client and step, lines of the user and arguments.
  """
  @functools.wraps(function)
  def run(*args):
    if (now := _SESSION.get()) is None:
      return function(*args)
    values = jax.tree.map(
        lambda x: jax.lax.stop_gradient(x) if _is_tracer(x) else x, args)
    named = {name: x for name, x in inspect.signature(function).bind(
        *values).arguments.items() if 'hparams' not in _fields(x)}
    where = f'{stage} failed in {now.what}'
    if not any(map(_is_tracer, jax.tree.leaves(values))):
      client = None  # the server
      for x in values:
        if 'step' in _fields(x):
          now.step = f', local step {x.step + 1}'
        if 'client_id' in _fields(x):
          client = int(x.client_id)
          where += f', client {client}' + now.step * (stage in _IN_STEPS)
      with _reporting(where, named):
        result = function(*values)
      returned = _RESULTS.get(stage, lambda x: {'result': x})(result)
      for name, x, words in [*((*x, 'given to') for x in _arrays(named)), *(
          (*x, 'returned by') for x in _arrays(returned))]:
        if jnp.issubdtype(x.dtype, jnp.floating) and (
            count := np.count_nonzero(~np.isfinite(x))):
          kind = 'NaN' if np.isnan(x).any() else 'infinity'
          now.not_finite.setdefault(client, (
              f'{name} has {kind} ({count} of {x.size} numbers), {words} '
              f'{where.replace("failed ", "")}'))
      if not any(map(_is_tracer, jax.tree.leaves(args))):
        return result
    with contextlib.ExitStack() as stack, _reporting(
        f'{where}, while JAX traces it', named):
      stack.callback(setattr, sys, 'breakpointhook', sys.breakpointhook)
      sys.breakpointhook = lambda *_, **__: None
      stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
      return function(*args)

  return run


def note(client: int | None = None) -> str:
  """Returns in words what of a client, or the server, first was not finite."""
  found = is_on() and _SESSION.get().not_finite.get(client)
  return f'; first: {found}' if found else ''


@contextlib.contextmanager
def _reporting(where, named):
  """Raises a StageError for an error of the body."""
  try:
    yield
  except StageError:
    raise
  except Exception as error:
    cause = isinstance(error, UserError) and error.__cause__ or error
    arrays = {name: [f'{path} {x.dtype}{list(x.shape)}'.strip()
                     for path, x in _arrays(x)] for name, x in named.items()}
    raise StageError('', f'{where}: {errors.first_line(cause)}\n' + ''.join(
        traceback.format_list(_user_frames(cause))) + '\n'.join(
            f'  {name}: ' + ', '.join(texts[:_MAX_ARRAYS])
            + ', ...' * (len(texts) > _MAX_ARRAYS)
            for name, texts in arrays.items() if texts)) from cause


def _user_frames(error):
  return [x for x in traceback.extract_tb(error.__traceback__)
          if not x.filename.startswith('<frozen')
          and _LIBRARIES.isdisjoint(pathlib.Path(x.filename).parents)]


def _arrays(tree):
  """Returns the arrays of a tree by name, without random keys."""
  return [(jax.tree_util.keystr(path, simple=True, separator='.'), x)
          for path, x in jax.tree_util.tree_leaves_with_path(tree)
          if isinstance(x, jax.Array | np.ndarray)
          and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
