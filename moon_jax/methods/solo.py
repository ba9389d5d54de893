"""SOLO: each client trains alone, from its own initial model.

The lower bound of the MOON paper (section 4.1): clients send nothing. Test
accuracy is the mean over the clients' models. The global model never changes.
"""

from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.methods.fedavg import fedavg


def solo() -> Algorithm:
  """Returns SOLO, local training without a server."""
  return fedavg()._replace(
      per_client_init=True, made_of=('solo',),
      init_client=lambda variables: variables,
      start=lambda view: view.client,
      finish=lambda variables, view: (variables, Message(())),
      aggregate=lambda variables, server, message, call: (
          variables, server, {}),
      evaluated=lambda variables, clients: clients)
