"""FedHalf: the server moves a fraction of the way to the clients' mean.

    w^{t+1} = w^t + fraction (sum_i |D_i| / |D| w_i - w^t)
"""

from typing import Annotated

from annotated_types import Gt, Le
import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked
from moon_jax.methods.fedavg import fedavg


@checked
def fedhalf(fraction: Annotated[float, Gt(0), Le(1)] = 0.5) -> Algorithm:
  """Returns FedHalf; fraction 1 is FedAvg.

  Args:
    fraction: of the way to the mean.
  """

  def aggregate(variables, server, message, call):
    params = jax.tree.map(
        lambda w, mean: w + fraction * (mean - w),
        variables['params'], message.mean['params'])
    return {**message.mean, 'params': params}, server, {}

  return fedavg()._replace(aggregate=aggregate)
