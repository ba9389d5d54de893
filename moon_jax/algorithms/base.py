"""What a federated algorithm is: a few pure functions over one client's view.

They are written for one client and one batch. Stacking, padding, lanes and
devices are the engine's business; no algorithm knows of them.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.optimizers import Hyperparameters

PyTree = Any


class Batch(NamedTuple):
  """Examples of one local step; B is the batch size, padding included."""

  images: jax.Array  # float32 [B, H, W, C], normalised
  labels: jax.Array  # int32 [B]
  mask: jax.Array  # float32 [B], 1 for real examples and 0 for padding


class View(NamedTuple):
  """What one client sees during one round; constant while it trains."""

  variables: Variables  # the round's global model, w^t
  server: PyTree  # what the algorithm's server sends along
  client: PyTree  # what this client has kept
  hparams: Hyperparameters  # scalars: learning_rate, momentum, mu, ...
  num_examples: jax.Array  # int scalar, |D_i|
  num_steps: jax.Array  # int scalar, local steps of this round


class LossAux(NamedTuple):
  """What comes with a loss: the model's moved variables, scalars to record."""

  variables: Variables
  metrics: dict[str, jax.Array]


class Algorithm(NamedTuple):
  """A federated algorithm.

  init_server(variables) -> server
      What the server keeps besides the model, from the initial model.
  init_client(variables) -> client
      What a client keeps between rounds, from the initial model.
  loss(model, variables, batch, view) -> (scalar, LossAux)
      The local objective F_i on one batch; its gradient by
      variables['params'] is what the local optimizer sees.
  finish(variables, view) -> (client, message)
      After the last local step: what the client keeps, and what it sends.
  aggregate(variables, server, message) -> (variables, server)
      The server's step, on the mean of the cohort's messages weighted by
      |D_i|.
  """

  init_server: Callable[[Variables], PyTree]
  init_client: Callable[[Variables], PyTree]
  loss: Callable[[Model, Variables, Batch, View], tuple[jax.Array, LossAux]]
  finish: Callable[[Variables, View], tuple[PyTree, PyTree]]
  aggregate: Callable[[Variables, PyTree, PyTree], tuple[Variables, PyTree]]
