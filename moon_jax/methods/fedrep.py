"""FedRep: clients train their own head first, and then the shared body.

Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations for
Personalized Federated Learning, ICML 2021, https://arxiv.org/abs/2102.07078,
algorithm 1.

    h_i <- h_i - lr grad_h F_i(h_i, phi^t)             first, phi = phi^t fixed
    phi_i <- phi_i - lr grad_phi F_i(h_i, phi_i)       then, h_i fixed
    phi^{t+1} = mean of phi_i

    h_i, the head -> view.client, the layers of `head`
    phi, the representation -> all other layers
    first -> hparams['head_fraction'] of the local steps, rounded; from 1 to all
      but one, unless it is 0 or 1; a client with one step trains its head alone

The paper's mean is uniform (--weighting=uniform); the released code
(https://github.com/lgcollins/FedRep) has |D_i| with some data. Its scripts
train the head in 10 of 15 epochs (head_fraction 0.67), or in 10 of 11. After
the last round it trains heads for 10 or more epochs, which is left out here.
"""

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, Fraction
from moon_jax.methods import parts
from moon_jax.methods.fedper import fedper


@checked
def fedrep(head: str = 'out', head_fraction: Fraction = 0.5) -> Algorithm:
  """Returns FedRep.

  Args:
    head: names of the layers that stay at the client, separated by spaces.
    head_fraction: fraction of the local steps that train the head.
  """
  names = head.split()

  def trains(params, batch, view):
    trains_head = parts.is_first(view.hparams['head_fraction'], batch, view)
    return {name: trains_head == (parts.layer_of(name) in names)
            for name in params}

  return fedper(head)._replace(
      trains=trains, hparams={'head_fraction': head_fraction},
      needs={'optimizer': 'sgd'})
