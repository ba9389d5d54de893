"""What a federated algorithm is: a few pure functions over one client's view.

They are written for one client and one batch. Stacking, padding, lanes and
devices are the engine's business; no algorithm knows of them.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.optimizers import HYPERPARAMETERS
from moon_jax.optimizers import Hyperparameters

PyTree = Any


class Batch(NamedTuple):
  """Examples of one local step; B is the batch size, padding included."""

  inputs: jax.Array  # normalised images, float32 [B, H, W, C]; features,
  # float32 [B, ..., F]; or tokens, int32 [B, T]
  labels: jax.Array  # int32 [B]
  mask: jax.Array  # float32 [B], 1 for real examples and 0 for padding
  frozen: PyTree = ()  # what Algorithm.frozen gave of these inputs


class View(NamedTuple):
  """What one client sees during one round; constant while it trains."""

  variables: Variables  # the round's global model, w^t
  server: PyTree  # what the server sends along: Algorithm.broadcast
  client: PyTree  # what this client has kept
  hparams: Hyperparameters  # scalars: learning_rate, momentum, mu, ...
  num_examples: jax.Array  # int scalar, |D_i|
  num_steps: jax.Array  # int scalar, local steps of this round


class LossAux(NamedTuple):
  """What comes with a loss: the model's moved variables, scalars to record."""

  variables: Variables
  metrics: dict[str, jax.Array]


class Message(NamedTuple):
  """What a client sends, and after the round what the server receives."""

  mean: PyTree  # received as the cohort's mean, weighted by |D_i|
  total: PyTree = ()  # received as the cohort's plain sum


class Algorithm(NamedTuple):
  """A federated algorithm.

  init_server(variables) -> server
      What the server keeps besides the model, from the initial model.
  broadcast(server) -> PyTree
      What of it the server sends along with the model: View.server.
  init_client(variables) -> client
      What a client keeps between rounds, from its initial model: the global
      one, or one of its own where `per_client_init`.
  start(view) -> variables
      The model from which a client trains in this round.
  frozen(model, batch, view) -> PyTree of arrays [B, ...]
      What models that do not train say of each example, for `loss`: where
      inputs are the same in every epoch it is asked once a round.
  loss(model, variables, batch, view) -> (scalar, LossAux)
      The local objective F_i on one batch.
  transform_grads(grads, view) -> grads
      What the local optimizer is given, from the gradient of the loss by
      variables['params'].
  finish(variables, view) -> (client, Message)
      After the last local step: what the client keeps, and what it sends.
  aggregate(variables, server, Message) -> (variables, server)
      The server's step on what it has received.
  evaluated(variables, clients) -> variables with a leading axis
      The models whose mean accuracy counts, of the global model and of what all
      clients keep ([C, ...]).
  per_client_init
      Whether each client draws an initial model of its own.
  """

  init_server: Callable[[Variables], PyTree]
  broadcast: Callable[[PyTree], PyTree]
  init_client: Callable[[Variables], PyTree]
  start: Callable[[View], Variables]
  frozen: Callable[[Model, Batch, View], PyTree]
  loss: Callable[[Model, Variables, Batch, View], tuple[jax.Array, LossAux]]
  transform_grads: Callable[[PyTree, View], PyTree]
  finish: Callable[[Variables, View], tuple[PyTree, Message]]
  aggregate: Callable[[Variables, PyTree, Message], tuple[Variables, PyTree]]
  evaluated: Callable[[Variables, PyTree], Variables]
  per_client_init: bool = False


def first_view(algorithm: Algorithm, variables: Variables) -> View:
  """What a client of one example and one step sees at first, for tracing."""
  return View(
      variables=variables,
      server=algorithm.broadcast(algorithm.init_server(variables)),
      client=algorithm.init_client(variables),
      hparams={name: jnp.float32(1) for name in HYPERPARAMETERS},
      num_examples=jnp.int32(1), num_steps=jnp.int32(1))
