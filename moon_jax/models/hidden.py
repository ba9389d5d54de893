"""Hidden units: which axes of which parameters belong to them.

The units of a hidden layer may change places without an effect on the outputs,
if all axes that belong to them change together: the last axis of the layer's
arrays, and the next to last one of the following kernel. That may be a multiple
of the units, channels last: flattened images [H, W, C] have H W C entries, and
entry i is of unit i mod C.
"""

from collections.abc import Mapping
from typing import Any

import jax

from moon_jax.errors import require, setting
from moon_jax.models import widths

# For each array, by path, and each of its axes the layer whose hidden units are
# its entries, or None: they are inputs, outputs or pixels.
Axes = Mapping[str, tuple[str | None, ...]]

_MAX_NAMES = 5  # in a message


def path_of(keys: Any) -> str:
  """Returns the path of an array of variables, such as "fc1/kernel"."""
  return jax.tree_util.keystr(keys[1:], simple=True, separator='/')


def arrays_of(variables: Any) -> dict[str, Any]:
  """Returns the arrays of a model by path."""
  return {path_of(keys): x for keys, x
          in jax.tree_util.tree_leaves_with_path(variables)}


def chain(variables: Any, layers: str = '') -> tuple[Axes, dict[str, int]]:
  """Returns the axes of layers that follow each other, and units per layer.

  Args:
    variables: the model.
    layers: its dense layers and convolutions, from the inputs to the outputs,
      separated by spaces; '' for those of mlp and simple_cnn.

  Raises:
    UserError: if the network has other layers, or they do not fit.
  """
  arrays, shapes = arrays_of(variables), widths.by_layer(variables)
  order = widths.ordered(variables, layers)
  layer_of = {path: path.rpartition('/')[0] for path in arrays}
  wrong = sorted({*layer_of.values()} ^ {*order}) + [
      name for name in order if not all(shapes[name])
      or sum(len(shape) > 1 for shape in shapes[name]) != 1]
  require(len(order) > 1 and not wrong, 'layers', 'must list a chain of layers '
          f'with one kernel each for {setting("aggregation", "matched")}',
          ', '.join((wrong or order)[:_MAX_NAMES]),
          'Networks with branches or normalization cannot be matched')
  kernels = {name: widths.kernel_of(shapes[name]) for name in order}
  for before, name in zip(order, order[1:]):
    num_inputs, count = kernels[name][-2], kernels[before][-1]
    is_flattened = len(kernels[name]) < len(kernels[before])
    require(num_inputs % count == 0 if is_flattened else num_inputs == count,
            'layers', f'must list a layer with {num_inputs} outputs before '
            f'{name}, which has {num_inputs} inputs', before,
            'List the layers from the input to the output')
  own = {name: name for name in order[:-1]}  # outputs are no hidden units
  inputs = dict(zip(order[1:], order))
  axes = {path: (*[None] * (x.ndim - 2),
                 *[inputs.get(layer_of[path])] * (x.ndim > 1),
                 own.get(layer_of[path])) for path, x in arrays.items()}
  return axes, {name: kernels[name][-1] for name in own}
