"""The interface of an algorithm: pure functions over one client's view.

The functions are written for one client and one batch. The engine alone deals
with stacking, padding, lanes and devices.
"""

from collections.abc import Callable, Iterable, Mapping
import types
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from moon_jax import debugging
from moon_jax.errors import UserError
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
    mixed: with augmentation=mixup the labels of the examples that are mixed
      into the inputs, and the weight of `labels`, a scalar; otherwise None.
      The loss of the task, `model.task.loss`, takes both labels.
  """

  inputs: jax.Array
  labels: jax.Array
  mask: jax.Array
  frozen: PyTree = ()
  step: jax.Array | np.int32 = np.int32(0)
  key: jax.Array | None = None
  mixed: tuple[jax.Array, jax.Array] | None = None


@jax.tree_util.register_static  # so that a view has arrays only
class Examples:
  """The training examples of a client, as functions of a client see them.

  `start`, `finish` and `personal_model` find it as View.examples. Examples are
  not augmented, have no noise of `Federation.input_noise_std`, and come in a
  random order that is the same in each round (class by class without
  shuffling), in batches of at most `BATCH_SIZE`, or as in local steps
  (`epoch`).
  """

  BATCH_SIZE = 100

  def __init__(self, batch_fn: Callable[[Any], 'Batch'], num_batches: Any,
               step_fn: Callable[[Any], 'Batch'] | None = None,
               num_steps: Any = None):
    """Reads nothing yet.

    Args:
      batch_fn: returns a batch for its index; the last batch has padding.
      num_batches: int scalar.
      step_fn: the same in batches of the size of a local step, for `epoch`.
      num_steps: int scalar, number of those batches.
    """
    self._batch_fn, self._num_batches = batch_fn, num_batches
    self._step_fn = step_fn or batch_fn
    self._num_steps = num_batches if step_fn is None else num_steps

  def fold(self, function: Callable[[PyTree, 'Batch'], PyTree],
           initial: PyTree) -> PyTree:
    """Returns the last of `carry = function(carry, batch)` over all batches.

    The carry begins as `initial`. Batch.step counts the batches.

    Examples:
      >>> count = examples.fold(
      ...     lambda n, batch: n + batch.mask.sum(), jnp.float32(0))
    """
    return lax.fori_loop(
        jnp.int32(0), self._num_batches,
        lambda s, carry: function(carry, self._batch_fn(s)), initial)

  def epoch(self, function: Callable[[PyTree, 'Batch'], PyTree],
            initial: PyTree) -> PyTree:
    """Returns the same as `fold` over batches of the size of a local step.

    For methods that train in `start`, `finish` or `personal_model`, where the
    size matters. The last batch has the remaining examples.
    """
    return lax.fori_loop(
        jnp.int32(0), self._num_steps,
        lambda s, carry: function(carry, self._step_fn(s)), initial)

  def sum(self, function: Callable[['Batch'], PyTree]) -> PyTree:
    """Returns the sum of the trees `function(batch)` over all batches."""
    like = debugging.eval_shape(
        lambda: function(self._batch_fn(jnp.int32(0))))
    return self.fold(
        lambda total, batch: jax.tree.map(jnp.add, total, function(batch)),
        jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))

  def only_if(self, is_read: jax.Array) -> 'Examples':
    """Returns these examples if a bool scalar is true, otherwise none.

    For methods that read them in some rounds. Other rounds take no time for it.
    """
    return Examples(
        self._batch_fn, jnp.where(is_read, self._num_batches, 0),
        self._step_fn, jnp.where(is_read, self._num_steps, 0))

  @classmethod
  def refused(cls, *error: str) -> 'Examples':
    """Returns examples that raise a UserError when they are read."""
    def refuse(index):
      raise UserError(*error)

    return cls(refuse, np.int32(0))


_IN_LOCAL_STEPS = Examples.refused(
    '', 'view.examples is for start, finish and personal_model',
    'a read of it in another function',
    "Read the batch, or let start put what it finds beside the 'params' that "
    'it returns')
_NOT_DECLARED = Examples.refused(
    '', 'an algorithm that reads view.examples must have reads_examples=True',
    'False', 'Add it: fedavg()._replace(..., reads_examples=True)')


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
    label_counts: int32 [K], this client's training examples of each class; [0]
      for tasks other than classification.
    model: the network, for `start`, `finish` and `personal_model`; None for the
      others. A loss has one with the key of its step.
    examples: those of this client, for the same functions of an algorithm with
      `reads_examples`.
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
  label_counts: jax.Array
  model: Model = None  # type: ignore[assignment]  # in other functions
  examples: Examples = _IN_LOCAL_STEPS


class Receiver(NamedTuple):
  """The client that `broadcast` answers.

  Attributes:
    client_id: int scalar, from 0.
    staleness: int scalar, server steps since the client began; 0 in synchronous
      rounds.
  """

  client_id: jax.Array
  staleness: jax.Array


class _AllClients:
  """The receiver of a broadcast that is the same for all clients."""

  def __getattr__(self, name):
    raise UserError(
        '', f'an algorithm whose broadcast reads receiver.{name} must have '
        'per_client_broadcast=True', False,
        'Add it: fedavg()._replace(..., per_client_broadcast=True)')


class ServerCall(NamedTuple):
  """What the server knows of a round when it aggregates.

  Attributes:
    hparams: scalars of the run, as in View.hparams.
    key: random key of the run and round.
    round: int scalar, from 0.
  """

  hparams: Hyperparameters
  key: jax.Array
  round: jax.Array


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

  Each field may be any tree of arrays. Integers and booleans of `mean` and
  `total` are added as float32.

  Attributes:
    mean: reduced to the cohort's mean, weighted as `Federation.weighting` says.
    total: reduced to the cohort's sum.
    each: not reduced: `aggregate` gets an `Each` with the clients' values side
      by side. Devices hold all of them, so leave it out if sums are enough.
  """

  mean: PyTree
  total: PyTree = ()
  each: PyTree = ()


class Each(NamedTuple):
  """What J clients sent as Message.each, for the server.

  Rows may be in any order, and include rows that hold no message of this run:
  their weight is 0 and their values are to be ignored.
  """

  value: PyTree  # [J, ...]
  weight: jax.Array  # float32 [J], shares in the mean; their sum is 1
  is_received: jax.Array  # bool [J], whether the row holds a message
  client: jax.Array  # int32 [J]


class Algorithm(NamedTuple):
  """A federated algorithm, as a tuple of pure functions.

  Start from `fedavg()` and replace what differs:
  `fedavg()._replace(loss=my_loss)`.

  Attributes:
    init_server: `(variables) -> server`. Returns the server state (besides the
      model) for the initial model.
    broadcast: `(server, receiver) -> tree`. Returns the part of the server
      state that clients see as View.server. With `per_client_broadcast` it may
      return a different part to each `Receiver`.
    init_client: `(variables) -> client`. Returns the initial client state from
      the client's initial model: the global one, or its own if
      `per_client_init`.
    start: `(view) -> trained`. Returns what a client trains in this round, the
      global model by default. It may be any {'params': tree, ...}, such as two
      models (see `moon_jax.models.joint`); the optimizer updates the leaves of
      'params'. Like `finish` and `personal_model` it may use view.model and
      view.examples.
    frozen: `(model, batch, view) -> tree of arrays [B, ...]`. Returns outputs
      of models that do not train, for `loss` to find in batch.frozen. It is
      called once per round if inputs are the same in every epoch, and otherwise
      in every step.
    loss: `(model, trained, batch, view) -> (scalar, LossAux)`. Returns the
      local objective F_i on one batch.
    gradient: `(objective, params, batch, view) -> ((loss, aux), grads)`.
      Returns the loss, and the direction to descend: the gradient of
      `objective(params, batch)` by default. It may call the objective with
      other parameters, or with a batch whose mask is changed.
    transform_grads: `(grads, view) -> grads`. Takes the gradient of the loss
      with respect to trained['params'] and returns what the local optimizer
      gets. It is then set to 0 where parameters do not train (`trains`).
    transform_updates: `(updates, batch, view) -> updates`. Returns what is
      added to trained['params'] after a local step, for the result of the local
      optimizer.
    trains: `(params, batch, view) -> tree of bool scalars`, like the parameters
      or the upper levels of their tree. Returns which of trained['params'] this
      step updates. The others keep their value and their state in the local
      optimizer. None if all train in each step. Adam's bias correction counts
      the steps of the round for all, so that it is wrong for a part that begins
      later.
    finish: `(trained, view) -> (client, Message)`. Returns the new client state
      and the message after the last local step.
    aggregate: `(variables, server, message, call) -> (variables, server,
      metrics)`. Returns the next global model and server state from the reduced
      `Message` and the `ServerCall` of the round; and a dict of arrays that are
      recorded as metrics of the round.
    evaluated: `(variables, clients) -> variables with a leading axis`. Returns
      the models whose mean test accuracy is reported, from the global model and
      the state of all clients ([C, ...]).
    evaluated_beside: names of all of these models but the first, which then is
      the one that metrics are of. The others' have the name as an ending, such
      as test_accuracy_width_0.5.
    local_model: `(trained, view) -> variables`. Returns the client's version of
      the global model after training, whose distance to the global model is
      recorded.
    personal_model: `(trained, view) -> variables`. Returns the model that the
      client itself uses after the round, which is evaluated on its examples;
      None if it is the local model.
    personal_is_current: whether evaluations of all clients make the personal
      model from `start`, of the newest message of the server and the client's
      own state. Otherwise clients keep that of the last round in which they
      trained.
    per_client_init: whether each client draws its own initial model.
    per_client_broadcast: whether `broadcast` reads the receiver.
    reads_examples: whether a function reads View.examples.
    max_staleness: the most server steps between the start of a client and its
      update; None if clients begin with the newest model.
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
      name, such as {'momentum': 0}, for which federations are checked. Further
      names: 'all_clients', all clients in each round; 'trusted_client', one of
      the clients; 'clients_of_attack', the number of clients; 'clipped_cohort',
      the number of clients of each round.
    min_received: the fewest messages from which `aggregate` makes a model; a
      round that receives fewer, but one or more, ends the run.
    upload_bytes: `(variables, hparams) -> int`. Returns the bytes of a message
      on a wire, from the shapes of the model; None if it is sent as it is. An
      array has those of clients in turn, again and again.
    download_bytes: the same of the global model that the server sends.
    made_of: the functions around it, the innermost one first, and methods that
      not all functions may go around; see `moon_jax.algorithms.order`.
    source: the call of a configuration that made it, such as "moon(mu=5)", for
      messages; '' of a value in Python.
  """

  init_server: Callable[[Variables], PyTree]
  broadcast: Callable[[PyTree, Receiver], PyTree]
  init_client: Callable[[Variables], PyTree]
  start: Callable[[View], Trained]
  frozen: Callable[[Model, Batch, View], PyTree]
  loss: Callable[[Model, Trained, Batch, View], tuple[jax.Array, LossAux]]
  gradient: Callable[..., tuple[tuple[jax.Array, LossAux], PyTree]]
  transform_grads: Callable[[PyTree, View], PyTree]
  transform_updates: Callable[[PyTree, Batch, View], PyTree]
  finish: Callable[[Trained, View], tuple[PyTree, Message]]
  aggregate: Callable[[Variables, PyTree, Message, ServerCall],
                      tuple[Variables, PyTree, dict[str, Any]]]
  evaluated: Callable[[Variables, PyTree], Variables]
  local_model: Callable[[Trained, View], Variables]
  personal_model: Callable[[Trained, View], Variables] | None = None
  personal_is_current: bool = False
  trains: Callable[[PyTree, Batch, View], PyTree] | None = None
  evaluated_beside: tuple[str, ...] = ()
  per_client_init: bool = False
  per_client_broadcast: bool = False
  reads_examples: bool = False
  max_staleness: int | None = None
  hparams: Mapping[str, float] = types.MappingProxyType({})
  penalties: Mapping[str, str] = types.MappingProxyType({})
  draws_client_state: bool = False
  needs: Mapping[str, Any] = types.MappingProxyType({})
  min_received: int = 1
  upload_bytes: Callable[
      [Variables, Mapping[str, Any]], int | np.ndarray] | None = None
  download_bytes: Callable[
      [Variables, Mapping[str, Any]], int | np.ndarray] | None = None
  made_of: tuple[str, ...] = ()
  source: str = ''

  @property
  def has_private_gradients(self) -> bool:
    """Whether local steps compute the gradient of each example."""
    return 'with_private_gradients' in self.made_of

  @property
  def draws_per_client(self) -> bool:
    """Whether the initial state of each client has its own random draws."""
    return self.per_client_init or self.draws_client_state


def answer(algorithm: Algorithm, server: PyTree, receiver: Receiver) -> PyTree:
  """Returns the result of `broadcast`; only the engine calls it for clients."""
  return algorithm.broadcast(server, receiver if algorithm.per_client_broadcast
                             else _AllClients())  # type: ignore[arg-type]


def with_examples(algorithm: Algorithm, view: View, model: Model,
                  examples: Examples) -> View:
  """Returns the view of `start`, `finish` and `personal_model`."""
  return view._replace(model=model, examples=(
      examples if algorithm.reads_examples else _NOT_DECLARED))


def first_message(algorithm: Algorithm, model: Model, view: View,
                  batch: Batch) -> Message:
  """Returns the message of a client that has not trained, for tracing."""
  view = with_examples(algorithm, view, model.with_key(view.key),
                       Examples(lambda s: batch, jnp.int32(1)))
  # Other arrays than those in `view`, as after training.
  trained = lax.optimization_barrier(algorithm.start(view))
  return algorithm.finish(trained, view)[1]


def as_summed(message: Message) -> Message:
  """Returns a message whose mean and total are of floating point."""
  def as_float(x):
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)

  return message._replace(mean=jax.tree.map(as_float, message.mean),
                          total=jax.tree.map(as_float, message.total))


def as_received(message: Message) -> Message:
  """Returns what `aggregate` gets if a client's message is the only one."""
  message = as_summed(message)
  if not jax.tree.leaves(message.each):
    return message
  return message._replace(each=Each(
      jax.tree.map(lambda x: jnp.asarray(x)[None], message.each), jnp.ones(1),
      jnp.ones(1, bool), jnp.zeros(1, jnp.int32)))


def first_view(algorithm: Algorithm, variables: Variables,
               num_classes: int = 0, hparams: Iterable[str] = ()) -> View:
  """Returns the view of a client with one example and one step, for tracing.

  `num_classes` is the length of its label counts, and `hparams` are the names
  of those of the local optimizer.
  """
  names = {*HYPERPARAMETERS, *algorithm.hparams, *hparams}
  return View(
      variables=variables,
      server=answer(algorithm, algorithm.init_server(variables),
                    Receiver(jnp.int32(0), jnp.int32(0))),
      client=algorithm.init_client(variables),
      hparams={name: jnp.float32(1) for name in sorted(names)},
      num_examples=jnp.int32(1), num_steps=jnp.int32(1), round=jnp.int32(0),
      client_id=jnp.int32(0), key=jax.random.key(0),
      label_counts=jnp.zeros(num_classes, jnp.int32))
