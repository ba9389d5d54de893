"""Low-rank compression of client updates, as in FedKD."""

import jax
import jax.numpy as jnp


def compressed(old, new, energy):
  """Returns old + C(new - old), of trees of parameters.

  C keeps the first singular values of a matrix: the fewest whose squares sum to
  more than `energy` of the sum over all of them. Kernels of convolutions are
  matrices of [inputs, outputs]; vectors are kept as they are.

  Args:
    old: parameters that both sides have.
    new: parameters of the same shapes.
    energy: float scalar; 1 keeps all values.
  """
  def leaf(old, new):
    if old.ndim < 2:
      return new
    u, sigma, v = jnp.linalg.svd(
        (new - old).reshape(-1, old.shape[-1]), full_matrices=False)
    before = jnp.cumsum(sigma**2) - sigma**2  # sums over the values before each
    sigma = jnp.where(before <= energy * jnp.sum(sigma**2), sigma, 0)
    return old + ((u * sigma[None]) @ v).reshape(old.shape)

  return jax.tree.map(leaf, old, new)
