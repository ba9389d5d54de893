"""FedPer: the head of the network stays at the client.

Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with
Personalization Layers, 2019, https://arxiv.org/abs/1912.00818, algorithm 1.

    (B_i, P_i) <- (B^t, P_i);  repeat: descend F_i in both
    B^{t+1} = sum_i |D_i| / |D| B_i

    B, the base layers -> all layers but those of `head`
    P_i, the personalization layers -> view.client, those of `head`

All heads are the same at first.
"""

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked
from moon_jax.methods import parts


@checked
def fedper(head: str = 'out') -> Algorithm:
  """Returns FedPer.

  Args:
    head: names of the layers that stay at the client, separated by spaces.
  """
  return parts.with_personal_part(parts.body_and_head(head))
