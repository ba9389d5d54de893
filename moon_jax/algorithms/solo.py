"""SOLO: each client trains alone, from an initial model of its own.

The lower bound of the MOON paper (section 4.1): nothing is sent. The model to
look at is each client's own; the global one stays as it was drawn.
"""

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import Message
from moon_jax.algorithms.fedavg import fedavg


def solo() -> Algorithm:
  """Local training only."""
  return fedavg()._replace(
      per_client_init=True,
      init_client=lambda variables: variables,
      start=lambda view: view.client,
      finish=lambda variables, view: (variables, Message(())),
      aggregate=lambda variables, server, message: (variables, server),
      evaluated=lambda variables, clients: clients)
