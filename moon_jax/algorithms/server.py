"""Server optimizers: an optax transformation around `Algorithm.aggregate`.

Reddi et al., Adaptive Federated Optimization, ICLR 2021,
https://arxiv.org/abs/2003.00295, algorithm 1. The change of the model in a
round is the pseudo-gradient.

    delta = w^t - (the algorithm's next model);   w^{t+1} = w^t + step(delta)

FedAvgM is SGD with momentum beta: v <- beta v + delta, w <- w - v (Hsu, Qi and
Brown, https://arxiv.org/abs/1909.06335). The code released with MOON uses an
exponential average instead, v <- beta v + (1 - beta) delta. FedAdam, FedYogi
and FedAdagrad are optax's optimizers, with bias correction.
"""

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm
from moon_jax.config import Config

_TAU = 1e-3  # adaptivity tau in the experiments of Reddi et al.


def make(config: Config) -> optax.GradientTransformation | None:
  """Returns the server optimizer of `config`; None takes the plain average."""
  rate, beta = config.server_learning_rate, config.server_momentum
  if config.server_optimizer == 'sgd':
    is_plain = rate == 1 and beta == 0
    return None if is_plain else momentum(
        rate, beta, config.server_momentum_form)
  return {
      'adam': lambda: optax.adam(rate, b1=.9, b2=.99, eps=_TAU),
      'yogi': lambda: optax.yogi(rate, b1=.9, b2=.99, eps=_TAU),
      'adagrad': lambda: optax.adagrad(
          rate, initial_accumulator_value=0., eps=_TAU),
  }[config.server_optimizer]()


def momentum(learning_rate: float, beta: float,
             form: str) -> optax.GradientTransformation:
  """Returns FedAvgM; `form` is "hsu", or "ema" as in the code of MOON."""
  if form == 'ema':
    return optax.chain(optax.ema(beta, debias=False),
                       optax.scale(-learning_rate))
  return optax.sgd(learning_rate, momentum=beta)


def with_optimizer(algorithm: Algorithm,
                   optimizer: optax.GradientTransformation | None
                   ) -> Algorithm:
  """Returns `algorithm` with a server optimizer.

  The optimizer updates parameters; a model's mutable state is averaged.

  Args:
    algorithm: any algorithm.
    optimizer: an optax transformation; None returns the algorithm unchanged.

  Example:
    >>> fedavgm = moon_jax.with_server_optimizer(
    ...     moon_jax.fedavg(), optax.sgd(1.0, momentum=0.7))
  """
  if optimizer is None:
    return algorithm

  def init_server(variables):
    return (algorithm.init_server(variables),
            optimizer.init(variables['params']))

  def aggregate(variables, server, message):
    inner, opt_state = server
    following, inner = algorithm.aggregate(variables, inner, message)
    params = variables['params']
    delta = jax.tree.map(jnp.subtract, params, following['params'])
    updates, opt_state = optimizer.update(delta, opt_state, params)
    params = optax.apply_updates(params, updates)
    return {**following, 'params': params}, (inner, opt_state)

  return algorithm._replace(
      init_server=init_server, aggregate=aggregate,
      broadcast=lambda server: algorithm.broadcast(server[0]))
