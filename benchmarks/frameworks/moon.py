"""MOON (Li et al., CVPR 2021); the client state is its previous model."""

import jax.numpy as jnp
import optax

import moon_jax as mj


def moon(config, mu=5.0, temperature=0.5):
  def frozen(model, batch, view):
    return [model.apply(variables, batch.inputs, batch.mask, train=False)[0]
            .projection for variables in (view.variables, view.client)]

  def loss(model, variables, batch, view):
    outputs, variables = model.apply(
        variables, batch.inputs, batch.mask, train=True)
    similarities = [optax.cosine_similarity(
        outputs.projection, z, epsilon=1e-8) for z in batch.frozen]
    logits = jnp.stack(similarities, 1) / temperature
    zeros = jnp.zeros_like(batch.labels)
    loss_B = (mj.losses.cross_entropy_B(outputs.logits, batch.labels)
              + mu * mj.losses.cross_entropy_B(logits, zeros))
    return (mj.losses.masked_mean(loss_B, batch.mask),
            mj.LossAux(variables, {}))

  def finish(variables, view):
    return variables, mj.Message(variables)

  return mj.fedavg()._replace(init_client=lambda variables: variables,
                              frozen=frozen, loss=loss, finish=finish)
