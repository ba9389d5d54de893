"""FedDBE: a client's bias of representations stays at the client.

Zhang et al., Eliminating Domain Bias for Federated Learning in Representation
Space, NeurIPS 2023, https://arxiv.org/abs/2311.14975.

    F_i = CE(g(z + p_i), y) + kappa/(2F) |r_i - r|^2
    r_i <- (1 - decay) r_i + decay mean_b z     in each step, from 0 each round
    r = sum_i |D_i| / |D| r_i                   of the initialization period

    p_i -> 'bias' of the trained parameters; view.client between rounds
    r -> view.server, z -> Outputs.projection, g: the last layer, `head`
    kappa, decay (the paper's mu) -> hparams['kappa'], hparams['mean_decay']

Clients train g, the layers before it and p_i by the same optimizer, and send
all but p_i. The first round is the initialization period: its clients train
without p_i and r and send their r_i; the global model does not change. In it
all clients should take part, as in https://github.com/TsingZ0/DBE (by which 1/2
and the mean over features F are). A client that was never sampled has p_i = 0.
"""

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked, Fraction, NonNegative
from moon_jax.methods import last_layer
from moon_jax.methods.fedavg import fedavg


@checked
def feddbe(kappa: NonNegative = 50.0, mean_decay: Fraction = 1.0,
           head: str = 'out') -> Algorithm:
  """Returns FedDBE; 50 and 1 are the released values for a CNN.

  Args:
    kappa: weight of the distance between the means r_i and r.
    mean_decay: weight of a batch in the running mean r_i.
    head: name of the last layer.
  """

  def zeros(variables):
    return jnp.zeros(len(last_layer.kernel(variables['params'], head)))

  def sent(trained, view=None):
    return {**{name: x for name, x in trained.items() if name != 'mean_F'},
            'params': trained['params']['sent']}

  def loss(model, trained, batch, view):
    outputs, variables = model.apply(
        sent(trained), batch.inputs, batch.mask, train=True)
    (r, is_known), bias = view.server, trained['params']['bias']
    logits_BK = outputs.logits + jnp.where(is_known, last_layer.shift_of_logits(
        variables['params'], bias, head), 0)[None]
    decay, mask_B1 = view.hparams['mean_decay'], batch.mask[:, None]
    mean_F = (jnp.sum(outputs.projection * mask_B1, 0)
              / jnp.maximum(jnp.sum(mask_B1), 1))
    mean_F = decay * mean_F + (1 - decay) * lax.stop_gradient(trained['mean_F'])
    apart = jnp.where(is_known, jnp.mean((mean_F - r) ** 2) / 2, 0)
    return (model.task.loss(logits_BK, batch) + view.hparams['kappa'] * apart,
            LossAux({**variables, 'params': trained['params'],
                     'mean_F': mean_F}, {'mean_distance': apart}))

  def finish(trained, view):
    n = jnp.float32(view.num_examples)
    return trained['params']['bias'], Message(
        sent(trained), total=(n * trained['mean_F'], n))

  def aggregate(variables, server, message, call):
    (r, is_known), (sum_F, n) = server, message.total
    variables = jax.tree.map(lambda new, old: jnp.where(is_known, new, old),
                             message.mean, variables)
    r = jnp.where(is_known, r, sum_F / jnp.maximum(n, 1))
    return variables, (r, is_known | (n > 0)), {}

  return fedavg()._replace(
      init_server=lambda variables: (zeros(variables), jnp.array(False)),
      init_client=zeros,
      start=lambda view: {
          **view.variables, 'mean_F': zeros(view.variables), 'params': {
              'sent': view.variables['params'], 'bias': view.client}},
      loss=loss, finish=finish, aggregate=aggregate, local_model=sent,
      personal_model=lambda trained, view: last_layer.with_shift(
          sent(trained), trained['params']['bias'], head),
      personal_is_current=True,
      hparams={'kappa': kappa, 'mean_decay': mean_decay},
      penalties={'mean_distance': 'kappa'})
