"""FedBN: batch normalization stays at the client.

Li, Jiang, Zhang, Kamp and Dou, FedBN: Federated Learning on Non-IID Features
via Local Batch Normalization, ICLR 2021, https://arxiv.org/abs/2102.07623,
algorithm 1.

    w_{i,l} <- w_l^t unless layer l is batch norm;  repeat: descend F_i
    w_l^{t+1} = mean of w_{i,l} unless layer l is batch norm

    batch norm, scale, bias and running statistics -> view.client

A layer of batch norm is one that has mutable state, the statistics. The paper's
mean is uniform (--weighting=uniform), and so is that of the released code
(https://github.com/med-air/FedBN). Without batch norm FedBN is FedAvg.
"""

from flax import traverse_util
import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.methods import parts


def fedbn() -> Algorithm:
  """Returns FedBN."""
  return parts.with_personal_part(without_and_with_statistics)


def without_and_with_statistics(variables):
  """Splits a model into all other layers, and those of batch norm."""
  stats = {name: tree for name, tree in variables.items() if name != 'params'}
  layers = {
      jax.tree_util.keystr(path, simple=True, separator='/').rpartition('/')[0]
      for tree in stats.values()
      for path, _ in jax.tree_util.tree_leaves_with_path(tree)} - {''}
  flat = traverse_util.flatten_dict(variables['params'])
  others, norms = (
      traverse_util.unflatten_dict({
          path: x for path, x in flat.items()
          if ('/'.join(map(str, path)).rpartition('/')[0] in layers) == is_in})
      for is_in in (False, True))
  return {'params': others}, {'params': norms, **stats} if stats else {}
