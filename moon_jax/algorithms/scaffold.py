"""SCAFFOLD: clients correct their drift by control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning, ICML 2020, https://arxiv.org/abs/1910.06378, algorithm 1, option II.

    w_i <- w_i - lr (grad F_i(w_i) - c_i + c)              K local steps
    c_i+ = c_i - c + (w^t - w_i) / (K lr)
    c <- c + 1/N sum_{i in S} (c_i+ - c_i)

    c -> view.server, c_i -> view.client, N -> num_clients

In the form "paper" the local optimizer must be SGD without momentum: otherwise
(w^t - w_i) / (K lr) is not the mean gradient.

The form "niid_bench" is that of NIID-Bench (Li et al., ICDE 2022,
https://arxiv.org/abs/2102.02079), whose code made the published tables of MOON.
The local optimizer is any SGD, with momentum m:

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

from collections.abc import Callable
import functools
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge
import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, order
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.fedprox import with_proximal
from moon_jax.config.parts import checked, FromRun

Form = Literal['paper', 'niid_bench']


class Controlled(NamedTuple):
  """The state of a client or of the server, with its control variate."""

  inner: Any  # state of the algorithm without SCAFFOLD
  variate: Any  # c_i or c, like the parameters


@checked
def scaffold(num_clients: FromRun[int], form: Form = 'paper',
             proximal_mu: Annotated[float, Ge(0)] = 0.) -> Algorithm:
  """Returns SCAFFOLD. Client state is c_i, server state is c.

  Args:
    num_clients: N, all clients of the federation, sampled or not.
    form: "paper", which applies control variates to gradients and needs
      momentum 0; or "niid_bench", after each step of SGD with any momentum, as
      in NIID-Bench's code.
    proximal_mu: weight of the proximal term of FedProx in the loss; 0 has none.

  Raises:
    UserError: if there is no such form.
  """
  made = _with_variates(  # FedAvg has no state
      fedavg(), num_clients, form,
      join=lambda inner, variate: variate,
      split=lambda variate: Controlled((), variate))
  return with_proximal(made, proximal_mu) if proximal_mu else made


@checked
def with_control_variates(algorithm: FromRun[Algorithm],
                          num_clients: FromRun[int],
                          form: Form = 'paper') -> Algorithm:
  """Returns `algorithm` with SCAFFOLD's control variates.

  Client and server state are `Controlled`.

  Args:
    algorithm: whose clients train and send a model like the global one.
    num_clients: N, all clients of the federation, sampled or not.
    form: "paper" or "niid_bench", which takes momentum.

  Raises:
    UserError: if there is no such form.

  Examples:
    >>> algorithm = moon_jax.with_control_variates(
    ...     moon_jax.moon(mu=1.0), num_clients=10)
  """
  return _with_variates(
      algorithm, num_clients, form, Controlled,
      lambda state: Controlled(*state))


def _with_variates(algorithm: Algorithm, num_clients: int, form: str,
                   join: Callable[[Any, Any], Any],
                   split: Callable[[Any], Controlled]) -> Algorithm:
  """Returns `algorithm` with control variates.

  `join` makes a state from that of `algorithm` and a variate, `split` the
  opposite.
  """
  algorithm = order.around(algorithm, 'with_control_variates')

  def variates(view):
    return split(view.client).variate, split(view.server).variate

  def with_zeros(init_fn):
    return lambda variables: join(
        init_fn(variables),
        jax.tree.map(jnp.zeros_like, variables['params']))

  @functools.wraps(algorithm.broadcast)
  def broadcast(server, **given):
    inner, c = split(server)
    return join(algorithm.broadcast(inner, **given), c)

  def transform_grads(grads, view):
    grads = inner.transform_grads(grads, view)
    if form != 'paper':
      return grads
    return jax.tree.map(
        lambda g, c_i, c: g - c_i + c, grads, *variates(view))

  def transform_updates(updates, batch, view):
    updates = inner.transform_updates(updates, batch, view)
    if form == 'paper':
      return updates
    return jax.tree.map(
        lambda u, c_i, c: u - view.hparams['learning_rate'] * (c - c_i),
        updates, *variates(view))

  @functools.wraps(algorithm.finish)
  def finish(trained, view, **given):
    client, message = inner.finish(trained, view, **given)
    c_i, c = variates(view)
    change = variate_change(trained['params'], c, view)
    c_i = jax.tree.map(jnp.add, c_i, change)
    return join(client, c_i), message._replace(total=(message.total, change))

  def aggregate(variables, server, message, hparams=None, key=None):
    server, c = split(server)
    total, change = message.total
    c = jax.tree.map(lambda c, d: c + d / num_clients, c, change)
    variables, server, *metrics = base.aggregate(
        algorithm, variables, server, message._replace(total=total), hparams,
        key)
    return variables, join(server, c), *metrics

  inner = base.with_view(algorithm, lambda view: view._replace(
      client=split(view.client).inner, server=split(view.server).inner))
  return inner._replace(
      init_server=with_zeros(algorithm.init_server),
      init_client=with_zeros(algorithm.init_client),
      broadcast=broadcast, transform_grads=transform_grads,
      transform_updates=transform_updates, finish=finish, aggregate=aggregate,
      evaluated=lambda variables, clients: algorithm.evaluated(
          variables, split(clients).inner),
      needs={**algorithm.needs, 'num_clients': num_clients, 'optimizer': 'sgd',
             **({'momentum': 0} if form == 'paper' else {})})


def variate_change(params, c, view):
  """Returns c_i+ - c_i = (w^t - w_i) / (K lr) - c."""
  num_steps = view.num_steps.astype(jnp.float32)
  rate = view.hparams['learning_rate']  # 0 changes nothing
  scale = 1 / (num_steps * jnp.where(rate > 0, rate, 1))
  return jax.tree.map(
      lambda c, w_global, w: jnp.where(
          rate > 0, (w_global - w) * scale - c, 0),
      c, view.variables['params'], params)
