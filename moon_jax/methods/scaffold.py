"""SCAFFOLD: clients correct their drift by control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning, ICML 2020, https://arxiv.org/abs/1910.06378, algorithm 1, option II.

    w_i <- w_i - lr (grad F_i(w_i) - c_i + c)              K local steps
    c_i+ = c_i - c + (w^t - w_i) / (K lr)
    c <- c + 1/N sum_{i in S} (c_i+ - c_i)

    c -> view.server, c_i -> view.client of the functions below
    N -> num_clients

In the form "paper" the local optimizer must be SGD without momentum: otherwise
(w^t - w_i) / (K lr) is not the mean gradient.

The form "niid_bench" is that of NIID-Bench (Li et al., ICDE 2022,
https://arxiv.org/abs/2102.02079), by two authors of MOON. The local optimizer
is any SGD, with momentum m:

    v <- m v + grad F_i(w_i);  w_i <- w_i - lr v;  w_i <- w_i - lr (c - c_i)

The updates of c_i and c are the same. With momentum, (w^t - w_i) / (K lr) is up
to 1 / (1 - m) times the mean gradient, and so are the variates. Without
momentum and clipping of gradients both forms are equal. Variates belong to
parameters and start at 0; a model's mutable state (batch statistics) is
averaged as in FedAvg. NIID-Bench's code starts all variates at a random
network, which matters if clients are sampled, and corrects running statistics,
too.

c is the uniform mean of the c_i, so without momentum SCAFFOLD minimizes the
uniform mean of the clients' objectives, however their models are weighted. If a
message is lost after training, c_i moves and c does not: from then on c differs
from that mean.
"""

import operator
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrap import wrap
from moon_jax.config.parts import checked, Count, FromRun, NonNegative
from moon_jax.errors import UserError
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedprox import with_proximal

Form = Literal['paper', 'niid_bench']


@checked
def scaffold(num_clients: FromRun[Count], form: Form = 'paper',
             proximal_mu: NonNegative = 0.) -> Algorithm:
  """Returns SCAFFOLD.

  Args:
    num_clients: N, all clients of the federation, sampled or not.
    form: "paper", which applies control variates to gradients and needs
      momentum 0; or "niid_bench", after each step of SGD with any momentum, as
      in NIID-Bench's code.
    proximal_mu: weight of the proximal term of FedProx in the loss; 0 has none.
  """
  made = with_control_variates(fedavg(), num_clients, form)
  return with_proximal(made, proximal_mu) if proximal_mu else made


@checked
def with_control_variates(algorithm: FromRun[Algorithm],
                          num_clients: FromRun[Count],
                          form: Form = 'paper') -> Algorithm:
  """Returns `algorithm` with SCAFFOLD's control variates.

  Args:
    algorithm: whose clients start from the global model, train it and send it.
    num_clients: N, all clients of the federation, sampled or not.
    form: "paper" or "niid_bench", which takes momentum.

  Raises:
    UserError: while tracing, if clients start from something else.

  Examples:
    >>> algorithm = moon_jax.with_control_variates(
    ...     moon_jax.moon(mu=1.0), num_clients=10)
  """
  zeros = lambda variables: optax.tree.zeros_like(variables['params'])

  def start(view):
    trained = made.start(view)
    w, w_global = (jax.tree.leaves(tree['params'])
                   for tree in (trained, view.variables))
    if len(w) != len(w_global) or any(map(operator.is_not, w, w_global)):
      raise UserError(
          '', 'with_control_variates needs clients that start from the global '
          'model', 'another start', 'Choose another algorithm')
    return trained

  def transform_grads(grads, view):
    if form != 'paper':
      return grads
    return jax.tree.map(
        lambda g, c_i, c: g - c_i + c, grads, view.client, view.server)

  def transform_updates(updates, batch, view):
    if form == 'paper':
      return updates
    return jax.tree.map(
        lambda u, c_i, c: u - view.hparams['learning_rate'] * (c - c_i),
        updates, view.client, view.server)

  def send(trained, message, view):
    change = variate_change(trained['params'], view.server, view)
    c_i = jax.tree.map(jnp.add, view.client, change)
    return c_i, message._replace(total=(message.total, change))

  def receive(variables, c, message, call):
    total, change = message.total
    c = jax.tree.map(lambda c, d: c + d / num_clients, c, change)
    return message._replace(total=total), c, {}

  made = wrap(
      algorithm, 'with_control_variates', init_client=zeros, init_server=zeros,
      broadcast=lambda c, receiver: c, transform_grads=transform_grads,
      transform_updates=transform_updates, send=send, receive=receive,
      needs={**algorithm.needs, 'num_clients': num_clients, 'optimizer': 'sgd',
             **({'momentum': 0} if form == 'paper' else {})})
  return made._replace(start=start)


def variate_change(params, c, view):
  """Returns c_i+ - c_i = (w^t - w_i) / (K lr) - c."""
  num_steps = view.num_steps.astype(jnp.float32)
  rate = view.hparams['learning_rate']  # 0 changes nothing
  scale = 1 / (num_steps * jnp.where(rate > 0, rate, 1))
  return jax.tree.map(
      lambda c, w_global, w: jnp.where(
          rate > 0, (w_global - w) * scale - c, 0),
      c, view.variables['params'], params)
