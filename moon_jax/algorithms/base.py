"""The interface of an algorithm: pure functions over one client's view.

The functions are written for one client and one batch. The engine alone deals
with stacking, padding, lanes and devices.
"""

from collections.abc import Callable, Mapping
import inspect
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.optimizers import HYPERPARAMETERS, Hyperparameters

PyTree = Any
Trained = dict[str, Any]  # {'params': tree, ...: mutable state}


class Batch(NamedTuple):
  """Examples of one local step; B is the batch size, padding included.

  Attributes:
    inputs: normalized images, float32 [B, H, W, C]; features, float32
      [B, ..., F]; or tokens, int32 [B, T].
    labels: int32 [B], or those of the task (`moon_jax.tasks`), [B, ...].
    mask: float32 [B], 1 for real examples and 0 for padding.
    frozen: result of Algorithm.frozen for these inputs.
    step: the client's local step, from 0.
    key: random key of this step, for draws of `loss`; None in `frozen`, whose
      result may serve several steps.
  """

  inputs: jax.Array
  labels: jax.Array
  mask: jax.Array
  frozen: PyTree = ()
  step: jax.Array | np.int32 = np.int32(0)
  key: jax.Array | None = None


class View(NamedTuple):
  """What one client sees during one round; constant while it trains.

  Attributes:
    variables: the round's global model, w^t.
    server: result of Algorithm.broadcast.
    client: state of this client.
    hparams: scalars: learning_rate, momentum, mu, num_rounds, ...; see
      `moon_jax.optimizers.HYPERPARAMETERS` and Algorithm.hparams.
    num_examples: int scalar, |D_i|.
    num_steps: int scalar, local steps of this round.
    round: int scalar, the round, from 0.
    client_id: int scalar, the client, from 0.
    key: random key of this run, round and client, for draws of `start`,
      `finish` and the other functions of a client. A loss has one per step,
      Batch.key.
  """

  variables: Variables
  server: PyTree
  client: PyTree
  hparams: Hyperparameters
  num_examples: jax.Array
  num_steps: jax.Array
  round: jax.Array
  client_id: jax.Array
  key: jax.Array


class LossAux(NamedTuple):
  """Second result of a loss.

  Attributes:
    variables: what the client trains, with updated mutable state.
    metrics: scalars to record.
  """

  variables: Trained
  metrics: dict[str, jax.Array]


class Message(NamedTuple):
  """What a client sends. `aggregate` gets the same type, reduced over clients.

  Each field may be any tree of arrays.

  Attributes:
    mean: reduced to the cohort's mean, weighted by |D_i|.
    total: reduced to the cohort's sum.
  """

  mean: PyTree
  total: PyTree = ()


class Algorithm(NamedTuple):
  """A federated algorithm, as a tuple of pure functions.

  Start from `fedavg()` and replace what differs:
  `fedavg()._replace(loss=my_loss)`.

  Attributes:
    init_server: `(variables) -> server`. Returns the server state (besides the
      model) for the initial model.
    broadcast: `(server) -> tree`. Returns the part of the server state that
      clients see as View.server.
    init_client: `(variables) -> client`. Returns the initial client state from
      the client's initial model: the global one, or its own if
      `per_client_init`.
    start: `(view) -> trained`. Returns what a client trains in this round, the
      global model by default. It may be any {'params': tree, ...}, such as two
      models (see `moon_jax.models.joint`); the optimizer updates the leaves of
      'params'.
    frozen: `(model, batch, view) -> tree of arrays [B, ...]`. Returns outputs
      of models that do not train, for `loss` to find in batch.frozen. It is
      called once per round if inputs are the same in every epoch, and otherwise
      in every step.
    loss: `(model, trained, batch, view) -> (scalar, LossAux)`. Returns the
      local objective F_i on one batch.
    transform_grads: `(grads, view) -> grads`. Returns the input of the local
      optimizer for the gradient of the loss with respect to trained['params'].
    transform_updates: `(updates, batch, view) -> updates`. Returns what is
      added to trained['params'] after a local step, for the result of the local
      optimizer.
    finish: `(trained, view) -> (client, Message)`. Returns the new client state
      and the message after the last local step.
    aggregate: `(variables, server, Message) -> (variables, server)`. Returns
      the next global model and server state. If it has parameters named
      `hparams` or `key`, it is called with hparams=View.hparams of the run, and
      with a random key of the run and round.
    evaluated: `(variables, clients) -> variables with a leading axis`. Returns
      the models whose mean test accuracy is reported, from the global model and
      the state of all clients ([C, ...]).
    local_model: `(trained, view) -> variables`. Returns the client's version of
      the global model after training, whose distance to the global model is
      recorded.
    personal_model: `(trained, view) -> variables`. Returns the model that the
      client itself uses after the round, which is evaluated on its examples;
      None if it is the local model.
    per_client_init: whether each client draws its own initial model.
    hparams: default values of the scalars in View.hparams that belong to the
      method or to its server, such as mu and server_momentum. They are arrays
      in the compiled program, so that another value does not recompile and runs
      with different values can share the program.
    penalties: for each penalty in the loss the name of the metric that records
      it, and the name of the hyperparameter that weighs it. The rest of the
      loss is recorded as cross_entropy, or as task_loss if it is none.
    draws_client_state: whether init_client gets a model that is drawn for the
      client instead of the global one, although clients start from the global
      model.
    needs: the settings of a `moon_jax.Federation` that the method assumes, by
      name, such as {'momentum': 0}. Federations made in Python are checked for
      them.
  """

  init_server: Callable[[Variables], PyTree]
  broadcast: Callable[[PyTree], PyTree]
  init_client: Callable[[Variables], PyTree]
  start: Callable[[View], Trained]
  frozen: Callable[[Model, Batch, View], PyTree]
  loss: Callable[[Model, Trained, Batch, View], tuple[jax.Array, LossAux]]
  transform_grads: Callable[[PyTree, View], PyTree]
  transform_updates: Callable[[PyTree, Batch, View], PyTree]
  finish: Callable[[Trained, View], tuple[PyTree, Message]]
  aggregate: Callable[..., tuple[Variables, PyTree]]
  evaluated: Callable[[Variables, PyTree], Variables]
  local_model: Callable[[Trained, View], Variables]
  personal_model: Callable[[Trained, View], Variables] | None = None
  per_client_init: bool = False
  hparams: Mapping[str, float] = types.MappingProxyType({})
  penalties: Mapping[str, str] = types.MappingProxyType({})
  draws_client_state: bool = False
  needs: Mapping[str, Any] = types.MappingProxyType({})

  @property
  def draws_per_client(self) -> bool:
    """Whether the initial state of each client has its own random draws."""
    return self.per_client_init or self.draws_client_state


# The functions whose last argument is the view.
_SEE_A_VIEW = ('start', 'frozen', 'loss', 'transform_grads',
               'transform_updates', 'finish', 'local_model', 'personal_model')


def aggregate(algorithm: Algorithm, variables: Variables, server: PyTree,
              message: Message, hparams: Mapping[str, Any] | None = None,
              key: jax.Array | None = None) -> tuple[Variables, PyTree]:
  """Calls `Algorithm.aggregate`, with those of hparams and key that it takes.

  Functions that wrap an algorithm call its `aggregate` only through this one,
  and pass on what they are called with.

  Args:
    algorithm: the algorithm.
    variables: the global model.
    server: the server state.
    message: the reduced message.
    hparams: scalars of the run; None for `Algorithm.hparams`.
    key: random key of the run and round; None for a constant one.
  """
  given = {'hparams': algorithm.hparams if hparams is None else hparams,
           'key': jax.random.key(0) if key is None else key}
  taken = inspect.signature(algorithm.aggregate).parameters
  return algorithm.aggregate(
      variables, server, message,
      **{name: value for name, value in given.items() if name in taken})


def with_view(algorithm: Algorithm,
              view_fn: Callable[[View], View]) -> Algorithm:
  """Returns `algorithm` with functions that see `view_fn(view)`.

  Functions that wrap an algorithm, and add to its client or server state, show
  it its own state in this way.
  """
  def seeing(name):
    function = getattr(algorithm, name)
    return function and (
        lambda *arguments: function(*arguments[:-1], view_fn(arguments[-1])))

  return algorithm._replace(**{name: seeing(name) for name in _SEE_A_VIEW})


def first_view(algorithm: Algorithm, variables: Variables) -> View:
  """Returns the view of a client with one example and one step, for tracing."""
  names = {*HYPERPARAMETERS, *algorithm.hparams}
  return View(
      variables=variables,
      server=algorithm.broadcast(algorithm.init_server(variables)),
      client=algorithm.init_client(variables),
      hparams={name: jnp.float32(1) for name in sorted(names)},
      num_examples=jnp.int32(1), num_steps=jnp.int32(1), round=jnp.int32(0),
      client_id=jnp.int32(0), key=jax.random.key(0))
