"""FedALA: a client starts from a learned mixture of its model and the global.

Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated
Learning, AAAI 2023, https://arxiv.org/abs/2212.01197, algorithm 1.

    base:  w_i <- w^t
    head:  w_i <- v_i + (w^t - v_i) * W_i       v_i: the client's last model
           W_i <- clip(W_i - eta grad_W F_i(w_i), 0, 1)    before it trains

    w^t -> view.variables; v_i, W_i, whether W_i has learned -> view.client

W_i begins at 1. It learns until the last 10 losses deviate by less than
`threshold` or for `max_epochs` (not in the paper), then one epoch per round. As
in the released code (TsingZ0/FedALA, ALA.py) the loss of an epoch is that of
its last batch, and W_i rests while v_i is w^t. Here W_i learns with the running
statistics of w^t. Batches divide all examples, in the order of the client's
list, so those at the ends of the share may be shorter.
"""

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Examples, Message
from moon_jax.config.parts import checked, Count, Fraction, Natural, NonNegative
from moon_jax.errors import require
from moon_jax.methods.fedavg import fedavg


@checked
def fedala(head: str = 'out', eta: NonNegative = 1.0, share: Fraction = 0.8,
           threshold: NonNegative = 0.1, ala_batch: Count = 10,
           max_epochs: Natural = 100) -> Algorithm:
  """Returns FedALA.

  Args:
    head: the p higher layers, which are mixed; names separated by spaces.
    eta: learning rate of W_i.
    share: fraction of the examples from which W_i learns: consecutive ones,
      from a random one on.
    threshold: standard deviation of the last 10 losses below which W_i has
      learned.
    ala_batch: examples of a batch for W_i, a divisor of 100, the number that is
      read at once.
    max_epochs: the most epochs that W_i learns in its first round.
  """
  require(Examples.BATCH_SIZE % ala_batch == 0, 'ala_batch',
          f'must be a divisor of {Examples.BATCH_SIZE}', repr(ala_batch),
          '10 is usual')
  heads = lambda variables: mixing.layers(variables, head)

  def start(view):
    own, weights, has_learned = view.client
    size = jnp.int32(share * jnp.float32(view.num_examples))
    first = jax.random.randint(view.key, (), 0, view.num_examples - size + 1)
    differs = mixing.square_distance(own, view.variables) > 0

    def mixture(weights):
      mixed = jax.tree.map(lambda v, w, a: v + (w - v) * a,
                           heads(own), heads(view.variables), weights)
      return {**view.variables, 'params': view.variables['params'] | mixed}

    def step(carry, part):
      value, grads = jax.value_and_grad(lambda a: mixing.loss_of(
          view.model, mixture(a), part))(carry[0])
      weights = jax.tree.map(lambda a, g: jnp.clip(
          a - view.hparams['eta'] * g, 0, 1), carry[0], grads)
      return jax.tree.map(lambda new, old: jnp.where(
          jnp.sum(part.mask) > 0, new, old), (weights, value), carry), ()

    def learn(carry, batch):
      place_B = batch.step * len(batch.mask) + jnp.arange(len(batch.mask))
      is_taken_B = (place_B >= first) & (place_B < first + size)
      batch = batch._replace(mask=jnp.where(is_taken_B, batch.mask, 0))
      return lax.scan(step, carry, mixing.parts(batch, ala_batch))[0]

    def epoch(carry):
      weights, losses, n = carry
      weights, last = view.examples.fold(learn, (weights, losses[-1]))
      return weights, jnp.append(losses[1:], last), n + 1

    def is_learning(carry):
      _, losses, n = carry
      varies = (n <= 10) | (jnp.std(losses) >= view.hparams['threshold'])
      return differs & jnp.where(has_learned, n < 1, varies & (n < max_epochs))

    weights, *_ = lax.while_loop(
        is_learning, epoch, (weights, jnp.zeros(10), jnp.int32(0)))
    return mixing.carry(mixture(weights), (weights, has_learned | differs))

  return mixing.carrying(fedavg())._replace(
      init_client=lambda w: (
          w, jax.tree.map(jnp.ones_like, heads(w)), jnp.bool_(False)),
      start=start, reads_examples=True, personal_is_current=True,
      finish=lambda trained, view: (
          (mixing.model_of(trained), *trained['carried']),
          Message(mixing.model_of(trained))),
      hparams={'eta': eta, 'threshold': threshold})
