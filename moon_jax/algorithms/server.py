"""Server optimizers: an optax transformation around `Algorithm.aggregate`.

Reddi et al., Adaptive Federated Optimization, ICLR 2021,
https://arxiv.org/abs/2003.00295, algorithm 1. The change of the model in a
round is the pseudo-gradient.

    delta = w^t - (the algorithm's next model);   w^{t+1} = w^t + step(delta)

FedAvgM is SGD with momentum beta: v <- beta v + delta, w <- w - v (Hsu, Qi and
Brown, https://arxiv.org/abs/1909.06335). The code released with MOON uses an
exponential average instead, v <- beta v + (1 - beta) delta. FedAdam and FedYogi
are optax's, with averages from 0 and bias correction; the paper starts v at
tau^2 or more and does not correct. The code of its authors
(https://github.com/google-research/federated, directory optimization) starts v
at 0, too. FedAdagrad is the paper's with beta_1 = 0.

The learning rate and beta are hyperparameters of the run: arrays in the
compiled program, as hparams['server_learning_rate'] and
hparams['server_momentum'].
"""

import collections
from collections.abc import Callable, Mapping
import math
import types
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrap import wrap
from moon_jax.config.parts import BelowOne, Positive
from moon_jax.errors import setting, UserError

# Makes the server optimizer of a run from its hyperparameters.
OptimizerFn = Callable[[Mapping[str, Any]], optax.GradientTransformation]


class Server(NamedTuple):
  """The optimizer of a server.

  Attributes:
    optimizer_fn: makes it from the hyperparameters; None takes the average of
      the clients' models as it is.
    hparams: the hyperparameters, which are arrays in the program.
  """

  optimizer_fn: OptimizerFn | None = None
  hparams: Mapping[str, float] = types.MappingProxyType({})


def sgd(learning_rate: Positive = 1.0, momentum: BelowOne = 0.0,
        form: Literal['hsu', 'ema'] = 'hsu') -> Server:
  """Returns SGD; with momentum it is FedAvgM.

  Args:
    learning_rate: learning rate of the server.
    momentum: beta; 0.9 is usual for FedAvgM.
    form: v = beta v + delta ("hsu"), or v = beta v + (1 - beta) delta ("ema")
      as in the code released with MOON.
  """
  if learning_rate == 1 and not momentum:
    return Server()
  make = _averaged if form == 'ema' else optax.sgd
  return Server(
      lambda hparams: make(
          hparams['server_learning_rate'], hparams['server_momentum']),
      {'server_learning_rate': learning_rate, 'server_momentum': momentum})


def adam(learning_rate: Positive = 0.01, b1: BelowOne = 0.9,
         b2: BelowOne = 0.99, eps: Positive = 0.001) -> Server:
  """Returns FedAdam.

  Args:
    learning_rate: learning rate of the server.
    b1: decay of the average of changes.
    b2: decay of the average of squared changes; 0.999 in the code released by
      its authors.
    eps: added to the root, tau in the paper; its authors choose it for each
      task, from 1e-5 to 0.1.
  """
  return _with_rate(learning_rate, lambda rate: optax.adam(rate, b1, b2, eps))


def yogi(learning_rate: Positive = 0.01, b1: BelowOne = 0.9,
         b2: BelowOne = 0.99, eps: Positive = 0.001) -> Server:
  """Returns FedYogi, whose averages start at 0; see `adam`."""
  return _with_rate(learning_rate, lambda rate: optax.chain(
      optax.scale_by_yogi(b1, b2, eps, initial_accumulator_value=0.),
      optax.scale_by_learning_rate(rate)))


def adagrad(learning_rate: Positive = 0.01, eps: Positive = 0.001) -> Server:
  """Returns FedAdagrad; see `adam`."""
  return _with_rate(learning_rate, lambda rate: _adagrad(rate, eps))


def _with_rate(learning_rate, make):
  return Server(lambda hparams: make(hparams['server_learning_rate']),
                {'server_learning_rate': learning_rate})


def _averaged(learning_rate, beta):
  return optax.chain(optax.ema(beta, debias=False),
                     optax.scale_by_learning_rate(learning_rate))


def _adagrad(learning_rate: jax.typing.ArrayLike, tau: float
             ) -> optax.GradientTransformation:
  """Returns FedAdagrad; optax's has tau in the root.

      v <- v + delta^2, from tau^2;   w <- w - rate delta / (sqrt(v) + tau)
  """
  def init(params):
    return jax.tree.map(lambda w: jnp.full_like(w, tau**2), params)

  def update(delta, v, params=None):
    v = jax.tree.map(lambda v, d: v + d**2, v, delta)
    return jax.tree.map(
        lambda d, v: -(learning_rate * d / (jnp.sqrt(v) + tau)), delta, v), v

  return optax.GradientTransformation(init, update)


def with_server_optimizer(algorithm: Algorithm,
                   optimizer: optax.GradientTransformation | OptimizerFn | None
                   ) -> Algorithm:
  """Returns `algorithm` with a server optimizer.

  The optimizer updates parameters; a model's mutable state is averaged.

  Args:
    algorithm: any algorithm.
    optimizer: an optax transformation; or a function that returns one for
      View.hparams, whose initial state must not depend on the values, which
      are NaN when it is made; None returns the algorithm unchanged.

  Examples:
    >>> fedavgm = moon_jax.with_server_optimizer(
    ...     moon_jax.fedavg(), optax.sgd(1.0, momentum=0.7))
  """
  if optimizer is None:
    return algorithm
  if not callable(optimizer) and not (
      hasattr(optimizer, 'init') and hasattr(optimizer, 'update')):
    raise UserError(
        '', 'a server optimizer must be a transformation of optax, such as '
        'optax.adam(0.01)', repr(optimizer), f'{setting("server")} takes names')
  make = optimizer if callable(optimizer) else lambda hparams: optimizer
  unknown = collections.defaultdict(
      lambda: math.nan, dict.fromkeys(algorithm.hparams, math.nan))

  def step(variables, opt_state, following, call):
    params = variables['params']
    delta = jax.tree.map(jnp.subtract, params, following['params'])
    updates, opt_state = make(call.hparams).update(delta, opt_state, params)
    params = optax.apply_updates(params, updates)
    return {**following, 'params': params}, opt_state, {}

  return wrap(
      algorithm, 'with_server_optimizer', step=step,
      # Runs of a program may differ in hyperparameters and begin alike: none
      # is known yet, and a state that depends on one is NaN.
      init_server=lambda variables: make(unknown).init(variables['params']))
