"""FedBN: batch normalization stays at the client.

Li, Jiang, Zhang, Kamp and Dou, FedBN: Federated Learning on Non-IID Features
via Local Batch Normalization, ICLR 2021, https://arxiv.org/abs/2102.07623,
algorithm 1.

    w_{i,l} <- w_l^t unless layer l is batch norm;  repeat: descend F_i
    w_l^{t+1} = mean of w_{i,l} unless layer l is batch norm

    batch norm, scale, bias and running statistics -> view.client

A layer of batch norm is one that has running statistics ("batch_stats"). The
paper's mean is uniform (--weighting=uniform), and so is that of the released
code (https://github.com/med-air/FedBN). Without batch norm FedBN is FedAvg.
"""

from moon_jax.algorithms import parts
from moon_jax.algorithms.base import Algorithm


def fedbn() -> Algorithm:
  """Returns FedBN."""
  return parts.with_personal_part(without_and_with_statistics)


def without_and_with_statistics(variables):
  """Splits a model into all other layers, and those of batch norm."""
  stats = variables.get('batch_stats', {})
  others, norms = _split(variables['params'], stats)
  sent = {**variables, 'params': others}
  sent.pop('batch_stats', None)
  return sent, {'params': norms, 'batch_stats': stats} if stats else {}


def _split(params, stats):
  """Splits a module's parameters by whether its layers have statistics."""
  others, norms = {}, {}
  for name, layer in params.items():
    layer_stats = stats.get(name)
    if layer_stats is None:
      others[name] = layer
    elif any(isinstance(x, dict) for x in layer_stats.values()):
      others[name], norms[name] = _split(layer, layer_stats)
    else:
      norms[name] = layer
  return others, norms
