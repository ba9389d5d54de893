"""The interface of a topology: which server model each client trains.

A federation has M server models. Each client of a round starts from one of
them, and its message is averaged into the same one. After that the models may
be mixed. With one server all clients share a model (M = 1). Clusters of
clients, edge servers, and nodes of a graph are other topologies:

    choose     the model of each client
    (training, and the algorithm's `aggregate` for each model)
    mix        the models that the next round begins with

The functions are pure and run on devices, as those of an `Algorithm` do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.models.base import Variables

PyTree = Any


class Choice(NamedTuple):
  """What is known when a client gets its model.

  Attributes:
    client_id: int scalar, the client, from 0.
    state: state of the topology.
    losses: float32 [M], the mean loss of each model over all predictions on the
      client's training examples; () unless Topology.needs_losses.
  """

  client_id: jax.Array
  state: PyTree
  losses: jax.Array | tuple[()] = ()


class Mixing(NamedTuple):
  """What is known at the end of a round.

  Attributes:
    start: the models with which the round began, [M, ...].
    models: those after `Algorithm.aggregate`, [M, ...]; one that received no
      message has not changed.
    weight: float32 [M], the weight of the messages that each received; all sum
      to 1, or to 0 if no message was received.
    state: state of the topology.
    round: int scalar, from 0.
    key: random key of the run and round.
    jobs: of all clients of the round; () unless Topology.needs_updates.
  """

  start: Variables
  models: Variables
  weight: jax.Array
  state: PyTree
  round: jax.Array
  key: jax.Array
  jobs: 'Updates | tuple[()]' = ()


class Updates(NamedTuple):
  """The changes of J clients in a round, in any order.

  Attributes:
    update: w_i - w of the client's model, `Variables['params']`, [J, ...].
    client: int32 [J].
    model: int32 [J], the model that each started from.
    weight: float32 [J], in the mean of all received messages.
    is_received: bool [J]; other rows hold no message and any values.
    losses: as Choice.losses, [J, M]; () unless Topology.needs_losses.
  """

  update: PyTree
  client: jax.Array
  model: jax.Array
  weight: jax.Array
  is_received: jax.Array
  losses: jax.Array | tuple[()] = ()


class Mixed(NamedTuple):
  """The result of `Topology.mix`.

  Attributes:
    models: [M, ...], with which the next round begins.
    state: state of the topology.
    metrics: arrays that are recorded as metrics of the round.
    keeps_server: whether the server state of all models stays that before the
      round, since `models` are not those of `Algorithm.aggregate`.
  """

  models: Variables
  state: PyTree
  metrics: dict[str, jax.Array] = {}
  keeps_server: jax.Array | bool = False


class Topology(NamedTuple):
  """The server models of a federation, and the clients that train each.

  Attributes:
    num_models: M.
    num_clients: C, if the functions are made for so many clients; 0 if they are
      for any number, and for clients that never take part.
    init: `() -> state`. Returns the state of the topology, a tree of arrays.
    choose: `(Choice) -> int scalar`. Returns the model, from 0, that a client
      starts from and contributes to.
    mix: `(Mixing) -> Mixed`. Returns the models of the next round.
    weigh: `(state) -> float [M]`. Returns the weights of the models in the mean
      of their test metrics; their sum is 1. None weighs them equally.
    begin: `(Variables) -> Variables`. Returns the models of the first round,
      [M, ...], given models that are drawn independently. None has equal ones.
    needs_losses: whether `choose` reads Choice.losses.
    needs_updates: whether `mix` reads Mixing.jobs.
    is_fixed: whether each client always has the same model, so that it is not
      recorded.
    has_server: whether clients exchange models with a server, which also sends
      what the algorithm broadcasts, and not with each other.
    received: models that a client receives in a round if all take part, a
      number or [C]. Without a server it sends as many; otherwise one message.
    sent: `(present_C) -> number`. Returns the models that clients send each
      other in a round in which these take part, 1, and others not, 0; or take
      part with a probability. Only without a server.
    between_servers: `(num_rounds) -> number`. Returns the models that servers
      send each other in the first rounds, all together.
  """

  num_models: int = 1
  num_clients: int = 0
  init: Callable[[], PyTree] = lambda: ()
  choose: Callable[[Choice], jax.Array] = lambda choice: jnp.int32(0)
  mix: Callable[[Mixing], Mixed] = lambda mixing: Mixed(
      mixing.models, mixing.state)
  weigh: Callable[[PyTree], jax.Array] | None = None
  begin: Callable[[Variables], Variables] | None = None
  needs_losses: bool = False
  needs_updates: bool = False
  is_fixed: bool = False
  received: float | np.ndarray = 1.
  sent: Callable[[np.ndarray], float] = lambda present_C: 0
  has_server: bool = True
  between_servers: Callable[[int], float] = lambda num_rounds: 0


STAR = Topology()


def star() -> Topology:
  """One server, whose model all clients train: the default."""
  return STAR
