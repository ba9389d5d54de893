"""Prototypes: the mean representation of each class.

    C_j = 1 / |D_j| sum_{(x, y) in D, y = j} z(x)

z is `Outputs.projection`, the input of a network's last layer `head`. Sums over
classes can be added over clients: `Message.total` of `ClassSums` gives the
prototypes of the examples of all clients in a cohort.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Batch, View
from moon_jax.methods import labels, last_layer
from moon_jax.models.base import Variables


class ClassSums(NamedTuple):
  """Sums over the examples of each class."""

  sum_KF: jax.Array  # of representations
  count_K: jax.Array  # float32, examples

  def means(self, otherwise_KF: jax.Array | float = 0.) -> jax.Array:
    """Returns the prototypes [K, F], `otherwise_KF` where there is no example.

    With `otherwise_KF` of the global prototypes their distance to it is 0.
    """
    mean_KF = self.sum_KF / jnp.maximum(self.count_K, 1)[:, None]
    return jnp.where(self.count_K[:, None] > 0, mean_KF, otherwise_KF)

  def means_as_sums(self) -> 'ClassSums':
    """Returns the sums in which each class has its mean as the one example."""
    return ClassSums(self.means(), jnp.float32(self.count_K > 0))


class Prototypes(NamedTuple):
  """The newest prototypes that a server has received."""

  mean_KF: jax.Array  # 0 of classes that no client has had
  is_known_K: jax.Array  # bool, whether a client has had the class

  def distance_B(self, z_BF: jax.Array, labels_B: jax.Array) -> jax.Array:
    """Returns |z - C_y|^2 / F, and 0 for classes that are not known."""
    square_B = jnp.mean((z_BF - self.mean_KF[labels_B]) ** 2, 1)
    return jnp.where(self.is_known_K[labels_B], square_B, 0)

  def updated(self, sums: ClassSums) -> 'Prototypes':
    """Returns the means of `sums`, and the old prototypes where it has none."""
    return Prototypes(sums.means(self.mean_KF),
                      self.is_known_K | (sums.count_K > 0))


def zeros(variables: Variables, head: str = 'out') -> ClassSums:
  """Returns the sums of no examples, for the network's classes and z."""
  num_features, num_classes = last_layer.kernel(
      variables['params'], head).shape
  return ClassSums(jnp.zeros((num_classes, num_features)),
                   jnp.zeros(num_classes))


def none(variables: Variables, head: str = 'out') -> Prototypes:
  """Returns the prototypes of a server that has not received any."""
  sum_KF, count_K = zeros(variables, head)
  return Prototypes(sum_KF, count_K > 0)


def batch_sums(z_BF: jax.Array, batch: Batch, view: View) -> ClassSums:
  """Returns the sums of a batch, of representations z."""
  one_BK = jnp.float32(labels.is_label_BK(batch, view)) * batch.mask[:, None]
  sum_KF = jnp.einsum('bk,bf->kf', one_BK, z_BF, precision='highest')
  return ClassSums(sum_KF, jnp.sum(one_BK, 0))


def client_sums(variables: Variables, view: View) -> ClassSums:
  """Returns the sums of a client's examples, of representations by a model."""
  return _sums(variables, view, lambda z_BF, batch: ())[0]


def statistics(variables: Variables, view: View) -> tuple[jax.Array, jax.Array]:
  """Returns h [K, F], and the variance of its estimate by the examples.

      h_k = p(k) m_k,  m_k = E[z | k],  variance = (E |z|^2 - |h|^2) / |D|
      E |z|^2 - |h|^2 = E |z - m_y|^2 + sum_k p(k) (1 - p(k)) |m_k|^2

  The second form has no difference of numbers that are nearly equal, for
  features that are far from 0. It reads the examples twice.
  """
  num_examples = jnp.float32(view.num_examples)
  sums = client_sums(variables, view)
  mean_KF = sums.means()

  def square(batch):
    one_BK = jnp.float32(labels.is_label_BK(batch, view)) * batch.mask[:, None]
    z_BF = mixing.outputs_of(view.model, variables, batch).projection
    rest_BF = z_BF - jnp.einsum(
        'bk,kf->bf', one_BK, mean_KF, precision='highest')
    return jnp.sum(jnp.sum(rest_BF ** 2, 1) * batch.mask)

  p_K = sums.count_K / num_examples
  between = jnp.sum(p_K * (num_examples - sums.count_K) / num_examples
                    * jnp.sum(mean_KF ** 2, 1))
  variance = view.examples.sum(square) / num_examples + between
  return p_K[:, None] * mean_KF, variance / num_examples


def second_moments(variables: Variables, view: View
                   ) -> tuple[ClassSums, jax.Array]:
  """Returns the sums of a client's examples, and those of z z' [K, F, F]."""
  def square(z_BF, batch):
    one_BK = jnp.float32(labels.is_label_BK(batch, view)) * batch.mask[:, None]
    return jnp.einsum('bkf,bg->kfg', one_BK[:, :, None] * z_BF[:, None], z_BF,
                      precision='highest')

  return _sums(variables, view, square)


def _sums(variables, view, square_fn):
  """Returns the sums of a client's examples, and that of square_fn(z, batch).
  """
  def sums(batch):
    z_BF = mixing.outputs_of(view.model, variables, batch).projection
    return batch_sums(z_BF, batch, view), square_fn(z_BF, batch)

  return view.examples.sum(sums)


def samples(sums: ClassSums, square_KFF: jax.Array, num_samples: int,
            key: jax.Array) -> jax.Array:
  """Returns samples [K, num_samples, F] of a Gaussian for each class.

  It has the mean and the unbiased covariance L L' of the class, from the result
  of `second_moments`; the samples are mean + L noise. The covariance is 0 for
  classes of less than two examples. It is the difference of sums over clients,
  so that its error is about 1e-7 times the squared norm of the mean.
  """
  n_K11 = jnp.maximum(sums.count_K, 2)[:, None, None]
  mean_K1F = sums.sum_KF[:, None] / jnp.maximum(
      sums.count_K, 1)[:, None, None]
  square_KFF = square_KFF - n_K11 * mean_K1F.swapaxes(1, 2) * mean_K1F
  square_KFF = jnp.where(sums.count_K[:, None, None] > 1, square_KFF, 0)
  root_KFF = jax.vmap(_cholesky)(square_KFF / (n_K11 - 1))
  noise_KMF = jax.random.normal(
      key, (len(square_KFF), num_samples, square_KFF.shape[1]))
  return mean_K1F + jnp.einsum('kmf,kgf->kmg', noise_KMF, root_KFF,
                               precision='highest')


def _cholesky(a_FF):
  """Returns L with L L' = a for a semidefinite matrix.

  A pivot that is rounding error has a column of zeros. (A covariance of fewer
  examples than features is singular; and the eigenvectors of LAPACK wait for
  each other if a program of several CPU devices calls it.)
  """
  smallest_F = 1e-5 * jnp.diag(a_FF)

  def step(i, carry):
    l_FF, rest_FF = carry
    pivot = rest_FF[i, i]
    is_error = pivot <= smallest_F[i]
    scale = jax.lax.rsqrt(jnp.where(is_error, 1, pivot))
    column_F = jnp.where(is_error, 0, rest_FF[:, i] * scale)
    return (l_FF.at[:, i].set(column_F),
            rest_FF - column_F[:, None] * column_F[None])

  l_FF, _ = jax.lax.fori_loop(
      0, len(a_FF), step, (jnp.zeros_like(a_FF), a_FF))
  return l_FF
