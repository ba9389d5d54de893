"""FedDyn with a mean of clients' models as the global model.

The released code tests two means, and never w^{t+1}, with which clients
continue: that of the clients of the round, and that of the last models of all
clients, which it plots (https://github.com/alpemreacar/FedDyn, the end of
`train_FedDyn` in utils_methods.py, and example_cifar_10.py). A client that has
not trained yet has the initial model. The first mean is uniform there, and
weighted like messages here. Clients get w^{t+1} from the state of the server;
drift and update_cosine are relative to the mean.
"""

from typing import Literal

import jax
import optax

import moon_jax as mj


def feddyn_mean(num_clients: mj.FromRun[int], alpha: float = .01,
                over: Literal['cohort', 'all'] = 'all') -> mj.Algorithm:
  """Returns FedDyn that is evaluated by a mean of models.

  Args:
    alpha: as in `moon_jax.feddyn`.
    over: the clients of a round, or all clients.
  """
  feddyn = mj.feddyn(num_clients, alpha)

  def seen(view):  # by FedDyn
    return view._replace(variables=view.server, client=view.client[0],
                         server=())

  def loss(model, variables, batch, view):
    return feddyn.loss(model, variables, batch, seen(view))

  def finish(trained, view):
    client, message = feddyn.finish(trained, seen(view))
    moved = optax.tree.sub(trained, view.client[1])
    return (client, trained), message._replace(total=(message.total, moved))

  def aggregate(variables, state, message, call):
    newest, server = state
    own, moved = message.total
    newest, server, _ = feddyn.aggregate(
        newest, server, message._replace(total=own), call)
    of_all = jax.tree.map(
        lambda w, total: w + total / num_clients, variables, moved)
    return (message.mean if over == 'cohort' else of_all), (newest, server), {}

  return feddyn._replace(
      init_server=lambda variables: (variables, feddyn.init_server(variables)),
      init_client=lambda variables: (feddyn.init_client(variables), variables),
      broadcast=lambda server, receiver: server[0],
      start=lambda view: view.server, loss=loss, finish=finish,
      aggregate=aggregate)
