"""FedADMM: clients minimize augmented Lagrangians, and send their progress.

Gong, Li and Freris, FedADMM: A Robust Federated Deep Learning Framework with
Adaptivity to System Heterogeneity, ICDE 2022, https://arxiv.org/abs/2204.03529.

    w_i+ minimizes F_i(w) + <y_i, w - w^t> + rho/2 |w - w^t|^2
    y_i+ = y_i + rho (w_i+ - w^t)
    Delta_i = (w_i+ + y_i+ / rho) - (w_i + y_i / rho)
    w^{t+1} = w^t + eta 1/|S| sum_{i in S} Delta_i

    w^t -> view.variables, w_i, y_i / rho -> view.client.params, .dual

At first w_i = w^0 and y_i = 0. Clients start from w^t, as in the released code
(https://github.com/YonghaiGong/FedADMM). The mean is uniform: give
weighting="uniform". In the form "released" Delta_i has w^t instead of w_i, as
in that code, and is 2 (w_i+ - w^t). If all clients take part, with equal
weights and eta = 1, the form "paper" equals FedDyn with alpha = rho. A client
whose message is lost after training moves w_i and y_i, but its Delta_i never
reaches w^t. The released code draws each client's number of local epochs.
"""

from typing import Any, Literal, NamedTuple

import jax
import optax

from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, NonNegative, Positive
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.feddyn import with_regularizer, zeros


class State(NamedTuple):
  """What a client keeps; both are trees like the parameters."""

  params: Any  # w_i
  dual: Any  # y_i / rho


@checked
def fedadmm(rho: Positive = 0.01, eta: NonNegative = 1.,
            form: Literal['paper', 'released'] = 'paper') -> Algorithm:
  """Returns FedADMM.

  Args:
    rho: weight of the quadratic term.
    eta: step size of the server; the released code has 1, and 0.5 from the 61st
      round on.
    form: "paper" or "released".
  """

  def finish(variables, view):
    params, w_global = variables['params'], view.variables['params']
    moved = optax.tree.sub(params, w_global)
    previous = view.client.params if form == 'paper' else w_global
    progress = jax.tree.map(
        lambda w, w_i, d: (w - w_i) + d, params, previous, moved)
    return (State(params, optax.tree.add(view.client.dual, moved)),
            Message({**variables, 'params': progress}))

  def aggregate(variables, server, message, call):
    params = optax.tree.add_scale(
        variables['params'], call.hparams['eta'], message.mean['params'])
    return {**message.mean, 'params': params}, server, {}

  return with_regularizer(
      fedavg(), 'rho', lambda view: view.client.dual,
      is_centred=True)._replace(
          init_client=lambda variables: State(
              variables['params'], zeros(variables)),
          finish=finish, aggregate=aggregate, made_of=(
              'fedadmm', *['sends_progress'] * (form == 'paper')),
          hparams={'rho': rho, 'eta': eta})
