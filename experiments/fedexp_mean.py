"""FedExP with the mean of its last two global models as the global model.

The released code evaluates this mean, whose accuracy oscillates less, and
continues from the last model (https://github.com/Divyansh03/FedExP, main.py,
line 419); in the first round it evaluates the new model. Clients get the last
model from the state of the server; drift and update_cosine are relative to the
mean.
"""

import jax

import moon_jax as mj


def fedexp_mean(epsilon: float = .001) -> mj.Algorithm:
  """Returns FedExP that is evaluated by the mean of the last two models."""
  fedexp = mj.fedexp(epsilon)

  def finish(trained, view):
    return fedexp.finish(trained, view._replace(variables=view.server))

  def aggregate(variables, last, message, call):
    newest, _, metrics = fedexp.aggregate(last, (), message, call)
    return jax.tree.map(lambda x, y: (x + y) / 2, last, newest), newest, metrics

  return fedexp._replace(
      init_server=lambda variables: variables,
      broadcast=lambda server, receiver: server,
      start=lambda view: view.server, finish=finish, aggregate=aggregate)
