"""Bytes that clients and server exchange, from the shapes of their arrays."""

from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import first_view
from moon_jax.models import Model
from moon_jax.simulation.federation import Federation


class Traffic(NamedTuple):
  """Bytes of one client in one round, in the types that are simulated."""

  download: int  # the global model and what the server broadcasts besides
  upload: int  # the message


def of_client(model: Model, algorithm: Algorithm,
              example: jax.Array) -> Traffic:
  """Returns the bytes of a client in a round.

  A client that trains its own initial model (`Algorithm.per_client_init`)
  downloads no model.

  Args:
    model: the network.
    algorithm: the algorithm.
    example: a normalized batch of one input.
  """
  def exchanged(key):
    view = first_view(algorithm, model.init(key, example))
    _, message = algorithm.finish(algorithm.start(view), view)
    model_sent = () if algorithm.per_client_init else view.variables
    return (model_sent, view.server), message

  return Traffic(*map(
      _num_bytes, jax.eval_shape(exchanged, jax.random.key(0))))


def per_round(federation: Federation, example: jax.Array,
              num_rounds: int) -> int:
  """Returns the bytes of a round in both directions, the mean over rounds.

  Clients that fail before training exchange nothing; those whose message is
  lost afterwards only download. Training on one client
  (--algorithm=centralized) needs no exchange.

  Args:
    federation: the federation.
    example: a normalized batch of one input.
    num_rounds: the rounds, from the first; 1 or more.
  """
  config = federation.config
  if config is not None and config.algorithm == 'centralized':
    return 0
  traffic = of_client(federation.model, federation.algorithm, example)
  lost = [federation.trained(index)[1] for index in range(num_rounds)]
  num_trained = np.mean([len(lost_J) for lost_J in lost])
  num_received = np.mean([lost_J.count(False) for lost_J in lost])
  return round(num_trained * traffic.download + num_received * traffic.upload)


def _num_bytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
