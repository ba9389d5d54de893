"""FedAS: clients align the body with their last one; Fisher weights average.

Yang, Huang and Ye, FedAS: Bridging Inconsistency in Personalized Federated
Learning, CVPR 2024, pages 11986-11995. The released code
(https://github.com/xiyuanyang45/FedAS) decides what follows.

    P_c = mean of f(x; b_i) over the examples of class c, b_i the last body
    b <- b - eta_a grad sum_c mean_{x of c} |f(x; b) - P_c|^2 / F   from b^t
    (b_i, h_i) <- (b, h_i);  repeat: descend F_i in both
    I_i = sum over batches of |grad F_i(batch)|^2                   Fisher
    b^{t+1} = sum_i I_i b_i / sum_i I_i

    b_i, h_i -> view.client, h_i the layers of `head`;  f(x; b) -> features
    eta_a -> hparams['align_rate'], in one pass over the batches of D_i

f and I_i are in evaluation mode; I_i has the gradients of body and head. In the
code clients align one model in turn, in batches of 16, and do not send the
statistics of batch norm. Here each aligns a copy, in batches of --batch_size in
the order of the client's list of examples (`Examples.epoch`), and the server
averages the statistics with the body.
"""

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, NonNegative
from moon_jax.errors import UserError
from moon_jax.methods import parts, prototypes

_TINY = 1e-30  # sum of Fisher weights up to which the body stays


@checked
def fedas(head: str = 'out', align_rate: NonNegative = 0.01) -> Algorithm:
  """Returns FedAS, for classification.

  Args:
    head: names of the layers that stay at the client, separated by spaces: the
      last one, or "proj1 proj2 out".
    align_rate: learning rate of the alignment; 0 does not align.

  Raises:
    UserError: if the head has proj2 without proj1: the input of proj2 is not an
      output of the network.
  """
  layers = head.split()
  if 'proj2' in layers and 'proj1' not in layers:
    raise UserError('head', 'must have proj1 beside proj2', repr(head),
                    'Add proj1, or remove proj2')
  split = parts.body_and_head(head)
  input_of_head = 'features' if 'proj1' in layers else 'projection'

  def features(model, variables, batch):
    return getattr(mixing.outputs_of(model, variables, batch), input_of_head)

  def start(view):
    means_KF = view.examples.sum(lambda batch: prototypes.batch_sums(
        features(view.model, view.client, batch), batch, view)).means()

    def misalignment(params, batch):
      z_BF = features(
          view.model, {**view.variables, 'params': params}, batch)
      square_B1 = jnp.mean(
          (z_BF - means_KF[batch.labels])**2, 1, keepdims=True)
      return prototypes.batch_sums(square_B1, batch, view).means().sum()

    aligned = view.examples.epoch(lambda params, batch: optax.tree.add_scale(
        params, -view.hparams['align_rate'],
        jax.grad(misalignment)(params, batch)), view.variables['params'])
    return parts.merge(
        view.client, split({**view.variables, 'params': aligned})[0])

  def finish(trained, view):
    nll = lambda params, batch: mixing.loss_of(
        view.model, {**trained, 'params': params}, batch)
    fisher = view.examples.epoch(lambda total, batch: total + optax.tree.norm(
        jax.grad(nll)(trained['params'], batch), squared=True), jnp.float32(0))
    return trained, Message((), total=(
        optax.tree.scale(fisher, split(trained)[0]), fisher))

  def aggregate(variables, server, message, call):
    total, fisher = message.total
    scale = 1 / jnp.maximum(fisher, _TINY)
    body = jax.tree.map(
        lambda w, total: jnp.where(fisher > _TINY, scale * total, w),
        split(variables)[0], total)
    return parts.merge(variables, body), server, {}

  return parts.with_personal_part(split)._replace(
      init_client=lambda variables: variables, start=start, finish=finish,
      aggregate=aggregate, reads_examples=True,
      hparams={'align_rate': align_rate})
