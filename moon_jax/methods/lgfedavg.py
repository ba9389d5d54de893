"""LG-FedAvg: the first layers stay at the client, the last ones are averaged.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, Think
Locally, Act Globally: Federated Learning with Local and Global Representations,
2020, https://arxiv.org/abs/2001.01523, algorithm 1.

    (l_i, g_i) <- (l_i, g^t);  repeat: descend F_i in both
    g^{t+1} = sum_i |D_i| / |D| g_i

    l_i, the local representation -> view.client, all layers but those of `head`
    g, the global layers -> those of `head`

The released code (https://github.com/pliang279/LG-FedAvg) averages uniformly,
which is --weighting=uniform. It starts from a model of FedAvg, and evaluates
each client's model of its best round by test accuracy; both are left out here.
"""

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked
from moon_jax.methods import parts


@checked
def lgfedavg(head: str = 'out') -> Algorithm:
  """Returns LG-FedAvg.

  Args:
    head: names of the layers that the server averages, separated by spaces.
  """
  split = parts.body_and_head(head)
  return parts.with_personal_part(lambda variables: split(variables)[::-1])
