"""CCVR: the last layer is calibrated with virtual representations.

Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated
Learning with Non-IID Data, NeurIPS 2021, https://arxiv.org/abs/2106.05001.

    z_k ~ N(mean_k, cov_k)                M virtual representations per class k
    psi <- psi - rate grad mean CE(psi(z_k), k)                   several steps

    mean_k, cov_k: of all clients' z of class k, by the global model
    psi -> the last layer, `head`, z -> Outputs.projection

Rounds are those of FedAvg until the last one (round --num_rounds), in which
clients send w^t and the number, mean and covariance of the representations of
each class, here as sums, and the server calibrates psi. All clients should take
part in it. It records test_accuracy after the calibration, and train_loss and
local metrics of training that is discarded. M is the same for all classes; the
paper says that it may follow their numbers of examples. A class of less than
two examples is left out. No code is known; the optimizer is open, here gradient
descent.
"""

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Count, Natural, NonNegative
from moon_jax.methods import last_layer, prototypes
from moon_jax.methods.fedavg import fedavg


@checked
def ccvr(num_virtual: Count = 500, calibration_rate: NonNegative = 0.1,
         calibration_steps: Natural = 100, head: str = 'out') -> Algorithm:
  """Returns FedAvg with CCVR; it is FedAvg for other rounds than the last.

  Args:
    num_virtual: M, virtual representations per class.
    calibration_rate: learning rate of the calibration.
    calibration_steps: its number of steps.
    head: name of the last layer.
  """

  def is_last(view):
    return jnp.float32(view.round + 1) == view.hparams['num_rounds']

  def finish(trained, view):
    sent = jax.tree.map(lambda new, old: jnp.where(is_last(view), old, new),
                        trained, view.variables)
    sums = prototypes.second_moments(view.variables, view._replace(
        examples=view.examples.only_if(is_last(view))))
    return (), Message(sent, total=(jnp.float32(is_last(view)), *sums))

  def aggregate(variables, server, message, call):
    num_last, sums, square_KFF = message.total
    # No iteration in other rounds. XLA would move what does not depend on the
    # iteration out of the loop, and run it in each round.
    layer = lax.fori_loop(
        0, jnp.int32(num_last > 0), lambda i, layer: calibrated(
            layer, sums, square_KFF + jnp.float32(i), call),
        last_layer.parameters(message.mean['params'], head))
    return last_layer.replace(message.mean, layer, head), server, {}

  def calibrated(layer, sums, square_KFF, call):
    z_KMF = prototypes.samples(sums, square_KFF, num_virtual, call.key)
    weight_K = jnp.float32(sums.count_K > 1)

    def loss(layer):
      log_p = jax.nn.log_softmax(last_layer.logits(layer, z_KMF))
      ce_K = -jnp.mean(jnp.diagonal(log_p, axis1=0, axis2=2), 0)
      return jnp.sum(ce_K * weight_K) / jnp.maximum(jnp.sum(weight_K), 1)

    return lax.fori_loop(
        0, jnp.int32(call.hparams['calibration_steps']),
        lambda _, layer: jax.tree.map(
            lambda w, g: w - call.hparams['calibration_rate'] * g, layer,
            jax.grad(loss)(layer)), layer)

  return fedavg()._replace(
      finish=finish, reads_examples=True, aggregate=aggregate,
      made_of=('ccvr',),
      hparams={'calibration_rate': calibration_rate,
               'calibration_steps': calibration_steps})
