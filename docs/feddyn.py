"""FedDyn as your own algorithm: a file outside the package.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021,
https://arxiv.org/abs/2111.04263, algorithm 1.

    w_i minimises F_i(w) - <g_i, w> + alpha/2 |w - w^t|^2
    g_i <- g_i - alpha (w_i - w^t)
    h   <- h - alpha 1/N sum_{i in S} (w_i - w^t)
    w^{t+1} = mean of w_i - h / alpha

    w^t -> view.variables, g_i -> view.client, h -> server, N -> num_clients
"""

from typing import Annotated

from annotated_types import Gt
import jax
import jax.numpy as jnp
import moon_jax as mj
import optax


def feddyn(num_clients: mj.FromRun[int],
           alpha: Annotated[float, Gt(0)] = 0.01) -> mj.Algorithm:
  """Returns FedDyn; the mean of the paper needs --weighting=uniform."""
  zeros = lambda variables: jax.tree.map(jnp.zeros_like, variables['params'])

  def loss(model, variables, batch, view):
    ce, aux = mj.fedavg().loss(model, variables, batch, view)
    params, g_i = variables['params'], view.client
    moved = optax.tree.sub(params, view.variables['params'])
    dynamic = (alpha / 2 * optax.tree.norm(moved, squared=True)
               - optax.tree.vdot(g_i, params))
    return ce + dynamic, aux

  def finish(variables, view):
    moved = optax.tree.sub(variables['params'], view.variables['params'])
    g_i = jax.tree.map(lambda g, d: g - alpha * d, view.client, moved)
    return g_i, mj.Message(mean=variables, total=moved)

  def aggregate(variables, h, message, call):
    h = jax.tree.map(
        lambda h, d: h - alpha * d / num_clients, h, message.total)
    params = jax.tree.map(
        lambda w, h: w - h / alpha, message.mean['params'], h)
    return {**message.mean, 'params': params}, h, {}

  return mj.fedavg()._replace(
      init_server=zeros, init_client=zeros,
      loss=loss, finish=finish, aggregate=aggregate)
