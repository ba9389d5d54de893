"""FedExP with the mean of its last two global models as the global model.

The released code evaluates this mean, whose accuracy oscillates less, and
continues from the last model (https://github.com/Divyansh03/FedExP, main.py,
line 419); in the first round it evaluates the new model. Clients get the last
model from the state of the server; drift and update_cosine are relative to the
mean. FedAvg with the same mean shows what the mean alone does.
"""

import jax

import moon_jax as mj


def fedexp_mean(epsilon: float = .001) -> mj.Algorithm:
  """Returns FedExP that is evaluated by the mean of the last two models."""
  return _with_mean(mj.fedexp(epsilon))


def fedavg_mean() -> mj.Algorithm:
  """Returns FedAvg that is evaluated by the mean of the last two models."""
  return _with_mean(mj.fedavg())


def _with_mean(algorithm):
  """`algorithm` has no state."""
  def finish(trained, view):
    return algorithm.finish(trained, view._replace(variables=view.server))

  def aggregate(variables, last, message, call):
    newest, _, metrics = algorithm.aggregate(last, (), message, call)
    return jax.tree.map(lambda x, y: (x + y) / 2, last, newest), newest, metrics

  return algorithm._replace(
      init_server=lambda variables: variables,
      broadcast=lambda server, receiver: server,
      start=lambda view: view.server, finish=finish, aggregate=aggregate)
