"""Prototypes: the mean representation of each class.

    C_j = 1 / |D_j| sum_{(x, y) in D, y = j} z(x)

z is `Outputs.projection`, the input of a network's last layer `head`. Sums over
classes can be added over clients: `Message.total` of `ClassSums` gives the
prototypes of the examples of all clients in a cohort.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Batch, Examples, View
from moon_jax.errors import UserError
from moon_jax.models import Model
from moon_jax.models.base import Variables


class ClassSums(NamedTuple):
  """Sums over the examples of each class."""

  sum_KF: jax.Array  # of representations
  count_K: jax.Array  # float32, examples


def classifier(params: Any, head: str = 'out') -> tuple[jax.Array, jax.Array]:
  """Returns the kernel [F, K] and the bias [K] of a network's last layer.

  The kernel of a layer that is a bias and nothing else is the identity.

  Args:
    params: parameters of the network.
    head: name of the layer.

  Raises:
    UserError: if there is no such layer.
  """
  layer = params.get(head)
  if layer is None:
    raise UserError(f'head must be the name of the last layer, one of '
                    f'{", ".join(params)}; got {head!r}. --algorithm_args='
                    'head=out is that of the built-in networks')
  if isinstance(layer, jax.Array):
    return jnp.eye(len(layer), dtype=layer.dtype), layer
  kernel = layer['kernel']
  return kernel, layer.get('bias', jnp.zeros(kernel.shape[1], kernel.dtype))


def zeros(variables: Variables, head: str = 'out') -> ClassSums:
  """Returns the sums of no examples, for the network's classes and z."""
  num_features, num_classes = classifier(variables['params'], head)[0].shape
  return ClassSums(jnp.zeros((num_classes, num_features)),
                   jnp.zeros(num_classes))


def num_classes(view: View) -> int:
  """Returns K.

  Raises:
    UserError: if the task is not classification.
  """
  if not len(view.label_counts):
    raise UserError('The method has a prototype for each class; it must have '
                    'data of the task "classification"')
  return len(view.label_counts)


def of_batch(z_BF: jax.Array, batch: Batch, view: View) -> ClassSums:
  """Returns the sums of a batch, of representations z."""
  is_label_BK = batch.labels[:, None] == jnp.arange(num_classes(view))[None]
  is_label_BK = is_label_BK * batch.mask[:, None]
  sum_KF = jnp.einsum('bk,bf->kf', is_label_BK, z_BF,
                      precision=jax.lax.Precision.HIGHEST)
  return ClassSums(sum_KF, jnp.sum(is_label_BK, 0))


def of_client(model: Model, variables: Variables, examples: Examples,
              view: View) -> ClassSums:
  """Returns the sums of a client's examples, of representations by a model."""
  def sums(batch):
    outputs, _ = model.apply(
        variables, batch.inputs, batch.mask, train=False)
    return of_batch(outputs.projection, batch, view)

  return examples.sum(sums)


def means(sums: ClassSums, otherwise_KF: jax.Array) -> jax.Array:
  """Returns the prototypes [K, F], and `otherwise` of classes without any."""
  mean_KF = sums.sum_KF / jnp.maximum(sums.count_K, 1)[:, None]
  return jnp.where(sums.count_K[:, None] > 0, mean_KF, otherwise_KF)
