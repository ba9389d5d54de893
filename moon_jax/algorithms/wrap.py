"""An algorithm around another one, with state of its own.

A wrapper changes what clients send, and what the server does with it:

    client:  the algorithm's finish > send
    server:  receive > the algorithm's aggregate > step

`wrap` is written once for all of them: it stores the state of the wrapper
beside that of the algorithm, shows each its own, and merges their metrics.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from moon_jax.algorithms import order
from moon_jax.algorithms.base import Algorithm, View


class Wrapped(NamedTuple):
  """A state of a client or of the server, or what the server broadcasts."""

  inner: Any  # of the algorithm
  own: Any  # of the wrapper


# The functions whose last argument is the view.
_SEE_A_VIEW = ('start', 'frozen', 'loss', 'gradient', 'transform_grads',
               'transform_updates', 'finish', 'local_model', 'personal_model',
               'trains')


def wrap(algorithm: Algorithm, name: str, *,
         init_client: Callable | None = None,
         init_server: Callable | None = None,
         broadcast: Callable | None = None,
         begin: Callable | None = None,
         transform_grads: Callable | None = None,
         transform_updates: Callable | None = None,
         send: Callable = lambda trained, message, view: ((), message),
         receive: Callable = lambda variables, own, message, call: (
             message, own, {}),
         step: Callable = lambda variables, own, following, call: (
             following, own, {}),
         **fields: Any) -> Algorithm:
  """Returns `algorithm` with a wrapper around it.

  The functions of the wrapper see their own state as view.client, view.server
  and `own`, which is () without `init_client`, `broadcast` and `init_server`;
  those of the algorithm see theirs.

  Args:
    algorithm: the algorithm.
    name: the wrapper, as in `moon_jax.algorithms.order`.
    init_client: `(variables) -> own`. Returns its first client state.
    init_server: `(variables) -> own`. Returns its first server state.
    broadcast: `(own, receiver) -> tree`. Returns what its functions at clients
      see as view.server.
    begin: `(view) -> variables`. Returns the model that the algorithm's clients
      see instead of the global one.
    transform_grads: as in `Algorithm`, after that of the algorithm.
    transform_updates: as in `Algorithm`, after that of the algorithm.
    send: `(trained, message, view) -> (own, message)`. Returns its next client
      state, and what the client sends instead of the algorithm's message.
    receive: `(variables, own, message, call) -> (message, own, metrics)`.
      Returns what the algorithm's aggregate gets instead of the received
      message, and its next server state.
    step: `(variables, own, following, call) -> (following, own, metrics)`.
      Returns the next global model instead of the algorithm's, and its next
      server state.
    **fields: other fields of `Algorithm`, which replace those of the algorithm.

  Raises:
    UserError: if this wrapper may not be around the algorithm.
  """
  algorithm = order.around(algorithm, name)

  def own_view(view):
    return view._replace(client=view.client.own if init_client else (),
                         server=view.server.own if broadcast else ())

  def inner_view(view):
    return view._replace(
        client=view.client.inner if init_client else view.client,
        server=view.server.inner if broadcast else view.server,
        variables=begin(own_view(view)) if begin else view.variables)

  inner = algorithm
  if init_client or broadcast or begin:
    inner = _with_view(algorithm, inner_view)

  def with_own(init_fn, own_fn):
    return own_fn and (
        lambda variables: Wrapped(init_fn(variables), own_fn(variables)))

  def split(server):
    return server if init_server else Wrapped(server, ())

  @functools.wraps(algorithm.finish)
  def finish(trained, view):
    client, message = inner.finish(trained, view)
    own, message = send(trained, message, own_view(view))
    return Wrapped(client, own) if init_client else client, message

  @functools.wraps(algorithm.aggregate)
  def aggregate(variables, server, message, call):
    server, own = split(server)
    message, own, received = receive(variables, own, message, call)
    following, server, metrics = algorithm.aggregate(
        variables, server, message, call)
    following, own, stepped = step(variables, own, following, call)
    return (following, Wrapped(server, own) if init_server else server,
            {**received, **stepped, **metrics})

  @functools.wraps(algorithm.broadcast)
  def broadcast_both(server, receiver):
    server, own = split(server)
    answer = algorithm.broadcast(server, receiver)
    return Wrapped(answer, broadcast(own, receiver)) if broadcast else answer

  changed = {
      'init_client': with_own(algorithm.init_client, init_client),
      'init_server': with_own(algorithm.init_server, init_server),
      'evaluated': init_client and (lambda variables, clients:
                                    algorithm.evaluated(
                                        variables, clients.inner)),
      'transform_grads': transform_grads and (
          lambda grads, view: transform_grads(
              inner.transform_grads(grads, view), own_view(view))),
      'transform_updates': transform_updates and (
          lambda updates, batch, view: transform_updates(
              inner.transform_updates(updates, batch, view), batch,
              own_view(view)))}
  return inner._replace(
      finish=finish, aggregate=aggregate, broadcast=broadcast_both,
      **{name: function for name, function in changed.items() if function},
      **fields)


def _with_view(algorithm: Algorithm,
               view_fn: Callable[[View], View]) -> Algorithm:
  """Returns `algorithm` with functions that see `view_fn(view)`."""
  def seeing(function):
    @functools.wraps(function)
    def seen(*arguments):
      return function(*arguments[:-1], view_fn(arguments[-1]))
    return seen

  functions = {name: getattr(algorithm, name) for name in _SEE_A_VIEW}
  return algorithm._replace(**{
      name: seeing(function) for name, function in functions.items()
      if function})
