"""Networks of smaller widths, as masks of one network.

A narrow network has some of the units of each hidden layer, and of each array
the slice with these inputs and outputs. The full network with zeros elsewhere
computes the same, so that networks of all widths are one program. Inputs and
classes never shrink. Kernels are [..., in, out], and what flattens images has
their channels last.
"""

from collections.abc import Callable, Sequence
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.errors import setting, UserError
from moon_jax.models.base import Variables

CLASSES = -1
_WHOLE = 0

# Layers of simple_cnn, mlp and the ResNets, in the order of the data.
_KNOWN = (r'conv\d', 'stem_conv', 'stem_bn', r'layer\d_\d', r'fc\d', r'proj\d',
          'out')


def units(variables: Variables, layers: str = '') -> list[tuple[int, ...]]:
  """Returns for each array what its axes are.

  An axis of U hidden units has U, also if they repeat in it, as channels do in
  what flattens an image. The axis of classes has `CLASSES`, and others 0.

  Args:
    variables: of the network, or their shapes.
    layers: names of its layers with a kernel, in the order of the data and
      separated by spaces; '' for those of the package. A name may be that of a
      module with several layers. Layers without a kernel, such as batch norm,
      have the hidden units if they have as many.

  Raises:
    UserError: if the network has other layers, or one does not fit the others.
  """
  named = by_layer(variables)
  order = [name for name in ordered(variables, layers)
           if kernel_of(named[name])]
  axes, hidden, before = {}, {0}, None
  for name in order:
    kernel = kernel_of(named[name])
    is_flat = before is not None and len(kernel) == 2 < len(before)
    size = before[-1] if is_flat else kernel[-2]
    if before is not None and (size not in hidden or kernel[-2] % size):
      raise UserError(
          'layers', f'must list a layer with {kernel[-2]} outputs before '
          f'{name}, which has {kernel[-2]} inputs', repr(layers),
          'List the layers from the input to the output')
    axes[name] = (_WHOLE if before is None else size,
                  CLASSES if name == order[-1] else kernel[-1])
    hidden.add(axes[name][1])
    before = kernel

  def of_array(path, x):
    name, size = _layer_of(path), jnp.shape(x)[-1:]
    if name in axes and len(jnp.shape(x)) > 1:
      return (_WHOLE,) * (len(jnp.shape(x)) - 2) + axes[name]
    if name in axes and len(size) == 1:
      return axes[name][1:]
    return size if len(jnp.shape(x)) == 1 and size[0] in hidden and (
        name in named) else (_WHOLE,) * len(jnp.shape(x))

  return [of_array(*leaf) for leaf in jax.tree.leaves_with_path(variables)]


def scaled(variables: Variables, layers: str = '') -> list[bool]:
  """Returns which arrays make hidden units that are not normalized next.

  They are kernel and bias of the hidden layers with a bias, unless the next one
  of `layers` has no kernel.
  """
  named, order = by_layer(variables), ordered(variables, layers)
  last = [name for name in order if kernel_of(named[name])][-1:]
  found = {name for name, following in zip(order, order[1:])
           if len(named[name]) > 1 and kernel_of(named[name])
           and kernel_of(named[following])} - {*last}
  return [_layer_of(path) in found
          for path, _ in jax.tree.leaves_with_path(variables)]


def mask(shape: Sequence[int], axes: Sequence[int],
         of_units: Callable[[int], jax.Array | None]) -> jax.Array:
  """Returns the product over the axes of of_units(U), float32.

  `axes` are those of `units`. None is 1 for all. The result has length 1 along
  axes without units.
  """
  product = jnp.ones((1,) * len(shape))
  for axis, (size, count) in enumerate(zip(shape, axes)):
    if count != _WHOLE and (one := of_units(count)) is not None:
      product = product * jnp.tile(one, size // len(one)).reshape(
          [-1 if axis == i else 1 for i in range(len(shape))])
  return product


def counts(rates: Sequence[float], num_units: int) -> np.ndarray:
  """Returns how many units networks of some widths have, rounded up."""
  return np.ceil(np.array(rates) * num_units - 1e-6).astype(np.int32)


def num_bytes(variables: Variables, rate: float, layers: str = '') -> int:
  """Returns the bytes of a network of a width."""
  return sum(
      x.dtype.itemsize * math.prod(
          size if n <= 0 else size // n * int(counts([rate], n)[0])
          for size, n in zip(x.shape, axes))
      for x, axes in zip(jax.tree.leaves(variables), units(variables, layers)))


def by_layer(variables) -> dict[str, list[tuple[int, ...]]]:
  """Returns the shapes of the parameters of each layer."""
  named: dict[str, list[tuple[int, ...]]] = {}
  for path, x in jax.tree.leaves_with_path({'params': variables['params']}):
    named.setdefault(_layer_of(path), []).append(jnp.shape(x))
  return named


def _layer_of(path):
  """Returns the layer of an array, such as layer1_0/conv1."""
  names = jax.tree_util.keystr(path, simple=True, separator='/').split('/')[1:]
  return '/'.join(names[:-1] or names)


def kernel_of(shapes):
  """Returns the shape of a layer's kernel, () if it has none."""
  return max(shapes, key=len) if max(map(len, shapes)) > 1 else ()


def ordered(variables, layers):
  """Returns the layers with parameters in the order of the data."""
  named = by_layer(variables)
  within = lambda name, whole: f'{name}/'.startswith(f'{whole}/')
  if layers:
    order = layers.split()
    wrong = [x for x in order if not any(within(name, x) for name in named)]
  else:
    wrong, order = [], sorted(
        {name.partition('/')[0] for name in named},
        key=lambda name: (_rank(name), name))
    order = [name for name in order if _rank(name) < len(_KNOWN)]
  listed = [name for whole in order for name in sorted(named)
            if within(name, whole)]
  missing = [name for name, shapes in named.items()
             if kernel_of(shapes) and name not in listed]
  if wrong or missing or not any(kernel_of(named[name]) for name in listed):
    raise UserError(
        'layers', 'must name the layers of a network that is not one of '
        'simple_cnn, mlp, resnet18 and resnet50, in the order of the data',
        repr(layers), f'Its layers are {", ".join(named)}, such as '
        f'{setting("layers", repr(" ".join(named)))}')
  return list(dict.fromkeys(listed))


@functools.cache
def _rank(name):
  """Returns the place of a layer among those of the package."""
  return next((i for i, known in enumerate(_KNOWN)
               if re.fullmatch(known, name)), len(_KNOWN))
