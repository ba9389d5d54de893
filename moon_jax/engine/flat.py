"""Trees whose arrays of one type lie side by side in one array.

XLA compiles a kernel for each array of a tree and each operation on it. Sums
over clients, norms and checks read every parameter once a round, and a network
has hundreds of arrays: array by array, these took longer to compile than the
local steps.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class Flat:
  """A tree in one array [..., N] for each type of its arrays.

  Operations of `jax.tree` and of `jax.vmap` see these arrays; axes that they
  add in front are axes of all arrays of the tree.

  Examples:
    >>> flat = Flat.from_tree({'w': jnp.ones((2, 3)), 'b': jnp.ones(3)})
    >>> jax.tree.leaves(flat)[0].shape
    (9,)
    >>> flat.tree()['w'].shape
    (2, 3)
  """

  def __init__(self, arrays: tuple[jax.Array, ...], like: Any):
    self._arrays = arrays
    self._like = like  # the structure of the tree; type and shape of its arrays

  @classmethod
  def from_tree(cls, tree: Any) -> 'Flat':
    """Returns the tree in arrays [N]."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    shapes = tuple((str(x.dtype), x.shape) for x in leaves)
    return cls(tuple(
        jnp.concatenate([x.ravel() for x in leaves if str(x.dtype) == dtype])
        for dtype in _types(shapes)), (structure, shapes))

  def tree(self) -> Any:
    """Returns the tree, with the axes that were added to its arrays."""
    structure, shapes = self._like
    arrays = dict(zip(_types(shapes), self._arrays))
    begin, leaves = dict.fromkeys(arrays, 0), []
    for dtype, shape in shapes:
      array, at = arrays[dtype], begin[dtype]
      begin[dtype] = at + math.prod(shape)
      leaves.append(array[..., at:begin[dtype]].reshape(
          *array.shape[:-1], *shape))
    return jax.tree.unflatten(structure, leaves)

  def tree_flatten(self):
    return self._arrays, self._like

  @classmethod
  def tree_unflatten(cls, like, arrays):
    return cls(tuple(arrays), like)


def _types(shapes):
  """Returns the types in `shapes`, each once, in order."""
  return list(dict.fromkeys(dtype for dtype, _ in shapes))
