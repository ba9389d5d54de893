"""FedPer and FedRep, as user-defined algorithms: the head stays at the client.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019,
https://arxiv.org/abs/1912.00818. Clients train a base, which the server
averages, and a head, which each client keeps for itself.

Collins et al., Exploiting Shared Representations for Personalized Federated
Learning, ICML 2021, https://arxiv.org/abs/2102.07078, algorithm 1. FedRep
trains the head first, with the base fixed, and then the base, with the head
fixed.

    head -> the parameters of the modules `head`, by name; view.client
"""

import jax
from jax import lax
import jax.numpy as jnp

import moon_jax as mj


def fedper(head: str = 'out') -> mj.Algorithm:
  """Returns FedPer; `head` is the name of the layer that stays at the client.

  The layers of the networks of moon_jax are named proj1, proj2 and out, among
  others; `head='proj1 proj2 out'` names several.
  """
  names = head.split()
  heads = lambda tree: {name: tree[name] for name in names}

  def finish(trained, view):
    base = {name: tree for name, tree in trained['params'].items()
            if name not in names}
    return heads(trained['params']), mj.Message({**trained, 'params': base})

  def aggregate(variables, server, message):
    params = {**variables['params'], **message.mean['params']}
    return {**message.mean, 'params': params}, server

  def with_heads(variables, params):
    return {**variables, 'params': {**variables['params'], **params}}

  return mj.fedavg()._replace(
      init_client=lambda variables: heads(variables['params']),
      start=lambda view: with_heads(view.variables, view.client),
      finish=finish, aggregate=aggregate,
      local_model=lambda trained, view: with_heads(
          trained, heads(view.variables['params'])),
      personal_model=lambda trained, view: trained)


def fedrep(head: str = 'out', head_fraction: float = 0.5) -> mj.Algorithm:
  """Returns FedRep: the first `head_fraction` of local steps train the head.

  It needs --weight_decay=0, since decay would also fill the momentum of
  parameters that do not train.
  """
  algorithm, names = fedper(head), head.split()

  def where(batch, view, tree, other):
    """Returns the entries of `tree` that train in this step, else `other`'s."""
    step, num_steps = (
        x.astype(jnp.float32) for x in (batch.step, view.num_steps))
    trains_head = step < head_fraction * num_steps
    return {name: jax.tree.map(
        lambda x, y: jnp.where(trains_head == (name in names), x, y),
        tree[name], other[name]) for name in tree}

  def loss(model, trained, batch, view):
    params = trained['params']
    fixed = jax.tree.map(lax.stop_gradient, params)
    return algorithm.loss(
        model, {**trained, 'params': where(batch, view, params, fixed)}, batch,
        view)

  def transform_updates(updates, batch, view):
    return where(batch, view, updates, jax.tree.map(jnp.zeros_like, updates))

  return algorithm._replace(loss=loss, transform_updates=transform_updates)
