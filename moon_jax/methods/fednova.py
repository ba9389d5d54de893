"""FedNova: averages client updates normalized by their number of local steps.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020, https://arxiv.org/abs/2007.07481,
equation 8 and section 4.2.

    d_i = (w^t - w_i) / |a_i|_1
    w^{t+1} = w^t - (sum_i p_i |a_i|_1) sum_i p_i d_i,   p_i = |D_i| / |D|

    |a_i|_1 = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho) for K steps of SGD
    with momentum rho; K without momentum. This form cancels for rho near 1;
    `effective_steps` has no difference.

A proximal term, mu/2 |w - w^t|^2, makes early steps count less (section 4.2):
|a_i|_1 = (1 - (1 - lr mu)^K) / (lr mu) without momentum, if lr mu < 1. In
general a_i may have negative elements, with momentum 0.9 from lr mu = 0.003 on;
then the sum of its elements replaces |a_i|_1, so that clients with the same
gradients have the same d_i. It counts as 1 at least. Clipping of gradients is
not considered.

A model's mutable state (batch statistics) is averaged as in FedAvg.
"""

import functools

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.algorithms.wrap import wrap
from moon_jax.config.parts import checked, FromRun, NonNegative
from moon_jax.errors import UserError
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedprox import with_proximal


@checked
def fednova(proximal_mu: NonNegative = 0.) -> Algorithm:
  """Returns FedNova; equal to FedAvg if all clients make equally many steps.

  Args:
    proximal_mu: weight of the proximal term of FedProx in the loss; 0 has none.
  """
  made = fedavg()
  return with_fednova(
      with_proximal(made, proximal_mu) if proximal_mu else made)


def with_fednova(algorithm: FromRun[Algorithm]) -> Algorithm:
  """Returns `algorithm` with FedNova's average of client updates.

  Args:
    algorithm: whose clients send a model like the global one, and train it with
      SGD.

  Raises:
    UserError: while tracing, if clients send something else.

  Examples:
    >>> algorithm = moon_jax.with_fednova(moon_jax.moon(mu=1.0))
  """
  def send(trained, message, view):
    sent, w_global = message.mean, view.variables['params']
    if jax.tree.structure(message) != jax.tree.structure(
        Message(view.variables)):  # type: ignore[operator]
      raise UserError(
          '', 'with_fednova needs clients whose Message.mean is a model like '
          'the global one, and that send nothing else', 'another message',
          'Choose another algorithm, or change its finish')
    rho = view.hparams['momentum']
    # with_proximal may be inside or around with_fednova.
    mu = algorithm.penalties.get('proximal_term', 'proximal_mu')
    pull = (view.hparams['learning_rate'] * view.hparams[mu]
            if mu in view.hparams else jnp.float32(0))
    a = effective_steps(view.num_steps, rho, pull)
    d = jax.tree.map(
        lambda w_global, w: (w_global - w) / a, w_global, sent['params'])
    return (), message._replace(mean={**sent, 'params': (d, a)})

  def receive(variables, server, message, call):
    d, a = message.mean['params']  # means over clients
    params = jax.tree.map(lambda w, d: w - a * d, variables['params'], d)
    return message._replace(
        mean={**message.mean, 'params': params}), server, {}

  return wrap(algorithm, 'with_fednova', send=send, receive=receive,
              needs={**algorithm.needs, 'optimizer': 'sgd'})


def effective_steps(num_steps: jax.Array, rho: jax.Array, pull: jax.Array
                    ) -> jax.Array:
  """Returns the number of plain steps that local steps equal, |a_i|_1.

  It is how far they move in units of the learning rate if all gradients are 1:

      v <- rho v + 1 - pull d;   d <- d + v;   d = v = 0 at first

  Args:
    num_steps: K, below 2^24; the relative error is up to 3e-4 at 20,000 steps.
    rho: momentum.
    pull: learning rate times mu; 0 without a proximal term.

  Returns:
    The number, 1 at least.
  """
  dot = functools.partial(jnp.matmul, precision='highest')
  one = jnp.float32(1)
  step = jnp.stack([  # of (d, v, 1)
      jnp.stack([1 - pull, rho, one]), jnp.stack([-pull, rho, one]),
      jnp.array([0., 0., 1.], jnp.float32)])

  def square(bit, carry):
    power, step = carry
    is_set = (num_steps >> bit) & 1 > 0
    return jnp.where(is_set, dot(step, power), power), dot(step, step)

  power, _ = jax.lax.fori_loop(
      0, 24, square, (jnp.eye(3, dtype=jnp.float32), step))
  return jnp.maximum(power[0, 2], 1)
