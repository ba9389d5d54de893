"""q-FedAvg: clients with a larger loss count more, for a fairer accuracy.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020,
https://arxiv.org/abs/1905.10497, algorithm 2, L = 1 / lr.

    minimize sum_i p_i / (q + 1) F_i(w)^{q+1}
    g_i     = (w^t - w_i) / lr                          w_i: after local steps
    Delta_i = F_i(w^t)^q g_i
    h_i     = q F_i(w^t)^{q-1} |g_i|^2 + F_i(w^t)^q / lr
    w^{t+1} = w^t - sum_i p_i Delta_i / sum_i p_i h_i

    (lr Delta_i, lr h_i) -> Message.mean['params']

The paper samples client i with probability p_i and then has equal weights. Here
p_i weighs the sums: the share of the examples, or 1 with weighting=uniform, as
in the released code (litian96/fair_flearn, trainers/qffedavg.py). As there,
F_i is the mean over all training examples, plus 1e-10. Local steps have no
momentum, so that g_i is a sum of gradients. If all F_i^q are 0 in float32, the
model does not change.
"""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods.fedavg import fedavg


@checked
def qfedavg(q: NonNegative = 1.0) -> Algorithm:
  """Returns q-FedAvg.

  Args:
    q: power of the losses; 0 is FedAvg, more is fairer.
  """

  def finish(trained, view):
    w, q = view.variables, view.hparams['q']
    rate = view.hparams['learning_rate']  # 0 changes nothing
    loss = mixing.loss_of_all(w, view) + 1e-10
    square = mixing.square_distance(w, trained)
    delta = jax.tree.map(
        lambda x, y: loss**q * (x - y), w['params'], trained['params'])
    h = q * loss**(q - 1) * square / jnp.where(rate > 0, rate, 1) + loss**q
    return view.client, Message({**trained, 'params': (delta, h)})

  def aggregate(variables, server, message, call):
    delta, h = message.mean['params']
    params = jax.tree.map(
        lambda w, d: w - d / jnp.where(h > 0, h, 1), variables['params'], delta)
    return {**message.mean, 'params': params}, server, {}

  return fedavg()._replace(
      finish=finish, reads_examples=True, aggregate=aggregate,
      hparams={'q': q},
      needs={'optimizer': 'sgd', 'momentum': 0})
