"""FedExP: FedAvg with an adaptive step size of the server, at least 1.

Jhunjhunwala, Wang and Joshi, FedExP: Speeding Up Federated Averaging via
Extrapolation, ICLR 2023, https://arxiv.org/abs/2301.09604, algorithm 1.

    Delta_i = w_i - w^t,  Delta = sum_i p_i Delta_i
    eta = max(1, sum_i p_i |Delta_i|^2 / (2 (|Delta|^2 + epsilon)))
    w^{t+1} = w^t + eta Delta

    epsilon -> hparams['epsilon']

The p_i are uniform in the algorithm of the paper, weighting="uniform", and
|D_i| / |D| in the released code (https://github.com/Divyansh03/FedExP). That
code multiplies epsilon by |S|, and by 0.998^2 in each round; here it is
constant. The code evaluates the mean of the last two global models, whose test
accuracy oscillates less; moon_jax evaluates the last one. A model's mutable
state (batch statistics) is averaged.
"""

import jax.numpy as jnp
import optax

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Positive
from moon_jax.methods.fedavg import fedavg


@checked
def fedexp(epsilon: Positive = 0.001) -> Algorithm:
  """Returns FedExP.

  Args:
    epsilon: added to |Delta|^2. It bounds the step size; FedAvg is its
      limit for large values.
  """

  def finish(variables, view):
    return view.client, Message(
        (variables, mixing.square_distance(variables, view.variables)))

  def aggregate(variables, server, message, call):
    mean, square = message.mean
    delta = optax.tree.sub(mean['params'], variables['params'])
    norm = optax.tree.norm(delta, squared=True)
    eta = jnp.maximum(1, square / (2 * (norm + call.hparams['epsilon'])))
    params = optax.tree.add_scale(variables['params'], eta, delta)
    return {**mean, 'params': params}, server, {}

  return fedavg()._replace(
      finish=finish, aggregate=aggregate, hparams={'epsilon': epsilon})
