"""MimeLite: clients take the steps of a centralized optimizer, here SGDm.

Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated
Learning (Mime), NeurIPS 2021, https://arxiv.org/abs/2008.03606, algorithm 1
without the correction of gradients.

    w_i <- w_i - lr ((1 - beta) grad F_i(w_i) + beta m)      from w^t
    w^{t+1} = mean of w_i
    m <- (1 - beta) mean of grad F_i(w^t; all of D_i) + beta m

    m -> view.server, beta -> hparams['mime_beta']

The momentum m is fixed while clients train. Both means are uniform in the
paper: give weighting="uniform". FedJAX (https://github.com/google/fedjax)
weighs by |D_i|, and has grad + beta m: its lr is (1 - beta) times ours for the
same steps.
The local optimizer must be SGD without momentum of its own.
"""

import jax
import optax

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import BelowOne, checked
from moon_jax.methods.fedavg import fedavg


@checked
def mimelite(mime_beta: BelowOne = 0.9) -> Algorithm:
  """Returns MimeLite.

  Args:
    mime_beta: momentum; 0 is FedAvg.
  """

  def transform_grads(grads, view):
    return momentum(grads, view.server, view.hparams['mime_beta'])

  def finish(variables, view):
    def gradient(batch):
      model = view.model.with_key(jax.random.fold_in(view.key, batch.step))
      objective = lambda params, batch: fedavg().loss(
          model, {**view.variables, 'params': params}, batch, view)
      _, grads = fedavg().gradient(
          objective, view.variables['params'], batch, view)
      return grads

    full = mixing.mean_of_all(view, gradient)
    return view.client, Message((variables, full))

  def aggregate(variables, m, message, call):
    variables, full = message.mean
    return variables, momentum(full, m, call.hparams['mime_beta']), {}

  return fedavg()._replace(
      init_server=lambda variables: optax.tree.zeros_like(variables['params']),
      transform_grads=transform_grads, finish=finish, aggregate=aggregate,
      reads_examples=True, hparams={'mime_beta': mime_beta},
      needs={'optimizer': 'sgd', 'momentum': 0})


def momentum(grads, m, beta):
  """Returns (1 - beta) g + beta m."""
  return jax.tree.map(lambda g, m: (1 - beta) * g + beta * m, grads, m)
