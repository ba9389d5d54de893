"""FedDyn (Acar et al., ICLR 2021); the client state is g_i."""

import jax
import jax.numpy as jnp
import optax

import moon_jax as mj


def feddyn(config, alpha=0.1):
  zeros = lambda variables: jax.tree.map(jnp.zeros_like, variables['params'])

  def loss(model, variables, batch, view):
    ce, aux = mj.fedavg().loss(model, variables, batch, view)
    moved = optax.tree.sub(variables['params'], view.variables['params'])
    return (ce - optax.tree.vdot(view.client, variables['params'])
            + alpha / 2 * optax.tree.norm(moved, squared=True)), aux

  def finish(variables, view):
    moved = optax.tree.sub(variables['params'], view.variables['params'])
    g_i = optax.tree.add_scale(view.client, -alpha, moved)
    return g_i, mj.Message(mean=variables, total=moved)

  def aggregate(variables, h, message):
    h = optax.tree.add_scale(h, -alpha / config.num_clients, message.total)
    params = optax.tree.add_scale(message.mean['params'], -1 / alpha, h)
    return {**message.mean, 'params': params}, h

  return mj.fedavg()._replace(init_server=zeros, init_client=zeros, loss=loss,
                              finish=finish, aggregate=aggregate)
