"""FedPAC: aligned representations, and the best mixture of classifiers.

Xu, Tong and Huang, Personalized Federated Learning with Feature Alignment and
Classifier Collaboration, ICLR 2023, https://arxiv.org/abs/2306.11867.

    phi_i <- phi_i - lr grad CE                      first, with theta^t fixed
    theta_i <- theta_i - lr grad (CE + lam/F |z - C_y|^2)    then, phi_i fixed
    theta = sum_i |D_i| / |D| theta_i,    C_j = mean of the z of class j
    phi_i <- sum_j a_ij phi_j,    a_i: a >= 0 of sum 1 with the least
      sum_j a_j^2 V_j / |D_j| + |sum_j a_j (h_i - h_j)|^2
    h_i = (p_i(k) E[z | k])_k,    V_i = E |z|^2 - |h_i|^2    by theta^t

    phi, theta -> the last layer, `head`, and all other layers
    C, phi -> view.server, z -> Outputs.projection, lam -> hparams['lam']
    first -> hparams['head_fraction'] of the local steps, rounded; from 1 to all
      but one, unless it is 0 or 1; a client with one step trains phi alone

As in https://github.com/JianXu95/FedPAC alignment begins in the second round.
That code also sets a_ij below 0.001 to 0, which is not done here. It trains phi
for one epoch with learning rate 0.1, then theta for five (together
--local_epochs=6 here), with momentum 0.5 for both. Without new messages a
client keeps phi_i and a class C_j; a class without any C_j is not aligned.
"""

import functools

from moon_jax import losses
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, Count, Fraction, FromRun, NonNegative
from moon_jax.methods import labels, last_layer, parts, prototypes, simplex
from moon_jax.methods.fedavg import with_terms


@checked
def fedpac(num_clients: FromRun[Count], lam: NonNegative = 1.0,
           head_fraction: Fraction = 1 / 6, head: str = 'out') -> Algorithm:
  """Returns FedPAC.

  Args:
    lam: weight of the alignment of representations.
    head_fraction: fraction of the local steps that train the head, first.
    head: name of the last layer.
  """

  def terms(outputs, batch, view):
    labels.require_classes(view)
    square_B = view.server[1].distance_B(outputs.projection, batch.labels)
    return {'apart': losses.masked_mean(square_B, batch.mask)}

  def trains(params, batch, view):
    is_first = parts.is_first(view.hparams['head_fraction'], batch, view)
    return {name: is_first == (name == head) for name in params}

  def finish(trained, view):
    theta = {name: x for name, x in trained['params'].items() if name != head}
    return (), Message(
        {**trained, 'params': theta},
        total=prototypes.client_sums(trained, view),
        each=(trained['params'][head], *prototypes.statistics(
            view.variables, view)))

  def aggregate(variables, server, message, call):
    each, (phi_C, known) = message.each, server
    heads_J, h_J, variance_J = each.value
    mixed_J = simplex.mixtures(heads_J, h_J, variance_J, each.is_received)
    phi_C = mixing.stored(phi_C, each, mixed_J, each.client)
    return (with_head(message.mean, variables['params'][head]),
            (phi_C, known.updated(message.total)), {})

  with_head = functools.partial(last_layer.replace, head=head)
  return with_terms(
      terms, {'apart': 'lam'},
      {'lam': lam, 'head_fraction': head_fraction})._replace(
          init_server=lambda variables: (
              mixing.copies(last_layer.parameters(
                  variables['params'], head), num_clients),
              prototypes.none(variables, head)),
          broadcast=lambda server, receiver: (
              mixing.at(server[0], receiver.client_id), server[1]),
          per_client_broadcast=True, reads_examples=True,
          start=lambda view: with_head(view.variables, view.server[0]),
          trains=trains, finish=finish, aggregate=aggregate,
          local_model=lambda trained, view: with_head(
              trained, view.variables['params'][head]),
          personal_model=lambda trained, view: trained,
          needs={'num_clients': num_clients, 'optimizer': 'sgd'})
