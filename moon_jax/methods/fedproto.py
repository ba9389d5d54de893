"""FedProto: clients send the mean representations of classes, and no weights.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients,
AAAI 2022, https://arxiv.org/abs/2105.00243, equations 3, 6, 7 and 8.

    F_i = CE + lam sum_j |C_ij - C_j|           C_ij: of the batch, in the loss
    C_ij = 1/|D_ij| sum_{(x, y) in D_ij} z(x)                 after training
    C_j = sum_i |D_ij| C_ij / sum_i |D_ij|         over clients with class j
    prediction: the class j of D_i with the nearest C_j

    C_j -> view.server, z -> Outputs.projection, lam -> hparams['lam']

Equation 6 also divides C_j by the number of clients; that would shrink it, and
is left out. A class that the cohort does not have keeps its C_j. Clients
predict with the last C_j received, and never a class that they do not have; the
loss of an example of such a class is about 1e9. `evaluated` are their
classifiers.

In the form "released", https://github.com/yuetan031/FedProto, the distance is
the mean of (z - C_y)^2 over examples and features, C_ij is the mean of the z
that the loss has seen in the last epoch, and C_j is the plain mean of C_ij.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked, Count, FromRun, NonNegative
from moon_jax.methods import last_layer, prototypes
from moon_jax.methods.fedavg import fedavg


@checked
def fedproto(lam: NonNegative = 1.0,
             form: Literal['paper', 'released'] = 'paper', head: str = 'out',
             local_epochs: FromRun[Count] = 1) -> Algorithm:
  """Returns FedProto.

  Args:
    lam: weight of the distance to the prototypes; 0 is training alone.
    form: "paper", or "released" as in the released code.
    head: name of the last layer.
  """
  is_paper = form == 'paper'

  def loss(model, trained, batch, view):
    outputs, variables = model.apply(
        mixing.model_of(trained), batch.inputs, batch.mask, train=True)
    z_BF, global_ = outputs.projection, view.server
    sums = prototypes.batch_sums(z_BF, batch, view)
    if is_paper:
      distance_K = losses.representation_distance_B(
          sums.means(global_.mean_KF), global_.mean_KF)
      distance = jnp.sum(jnp.where(global_.is_known_K, distance_K, 0))
    else:
      distance = losses.masked_mean(
          global_.distance_B(z_BF, batch.labels), batch.mask)
    per_epoch = jnp.maximum(view.num_steps // local_epochs, 1)
    seen = jax.tree.map(  # in this epoch
        lambda old, new: jnp.where(batch.step % per_epoch == 0, 0, old) + new,
        trained['carried'], jax.lax.stop_gradient(sums))
    return (model.task.loss(outputs.logits, batch)
            + view.hparams['lam'] * distance,
            LossAux(mixing.carry(variables, seen), {'distance': distance}))

  def finish(trained, view):
    own, seen = mixing.model_of(trained), trained['carried']
    return own, Message((), prototypes.client_sums(own, view) if is_paper
                        else seen.means_as_sums())

  return fedavg()._replace(
      init_server=lambda variables: prototypes.none(variables, head),
      per_client_init=True, init_client=lambda variables: variables,
      start=lambda view: mixing.carry(
          view.client, prototypes.zeros(view.variables, head)),
      loss=loss, finish=finish,
      reads_examples=is_paper,
      aggregate=lambda variables, server, message, call: (
          variables, server.updated(message.total), {}),
      evaluated=lambda variables, clients: clients,
      local_model=mixing.model_of,
      personal_model=lambda trained, view: last_layer.with_nearest(
          mixing.model_of(trained), view.server.mean_KF,
          view.server.is_known_K & (view.label_counts > 0), head),
      personal_is_current=True,
      hparams={'lam': lam}, penalties={'distance': 'lam'},
      made_of=('fedproto',),
      needs={} if is_paper else {
          'local_epochs': local_epochs, 'local_steps': 0})
