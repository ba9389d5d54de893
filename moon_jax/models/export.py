"""Exports adapters: merged weights, or a directory for PEFT.

https://github.com/huggingface/peft. PyTorch has A and B transposed.
"""

import collections
from collections.abc import Callable, Mapping
import json
import pathlib
from typing import Any

from flax import traverse_util
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from moon_jax.errors import require
from moon_jax.models import adapters
from moon_jax.models import user as user_model
from moon_jax.models.base import Model, Variables

_A, _B = adapters.NAMES
_PREFIX = 'base_model.model.'
_MERGE = 'moon_jax.merge_adapters returns all weights'


def merge_adapters(model: Model, variables: Variables,
                   inputs: Any) -> Variables:
  """Returns the variables of the network that `lora` or `freeze` got.

  Its kernels are W + alpha / rank x A B. The result is wrong for layers that
  change their kernel before use (`nn.WeightNorm`) or scale their output.

  Args:
    model: the network with adapters, or with frozen weights.
    variables: what trained, as `moon_jax.load` or `Simulation.global_model`
      returns it.
    inputs: a batch of the data set, such as `data.train_inputs[:1]`. Only its
      shape and type count.

  Raises:
    UserError: if no weights are frozen, or an adapter has no kernel of its
      name.

  Examples:
    >>> weights = moon_jax.merge_adapters(
    ...     adapted, simulation.global_model(), data.train_inputs[:1])

  See also: `save_peft`.
  """
  fixed, flat = _parts(model, variables, inputs)
  for path in [path for path in flat if path[-1] == _A]:
    a, b = (flat.pop((*path[:-1], name)) for name in (_A, _B))
    kernel = (*path[:-1], 'kernel')
    require(kernel in flat, 'model', 'must have its kernels where its layers '
            'are', f'no {"/".join(kernel)}{model.place}',
            'Merge in the code of the network')
    change = model.lora_scale * jnp.matmul(a, b, precision='highest')
    flat[kernel] = flat[kernel] + change.reshape(flat[kernel].shape)
  return {**fixed, **variables, 'params': traverse_util.unflatten_dict(flat)}


def save_peft(directory: str | pathlib.Path, model: Model,
              variables: Variables, inputs: Any, *,
              names: Callable[[str], str] = lambda path: path.replace(
                  '/', '.'),
              base_model: str = '', fan_in_fan_out: bool = False) -> None:
  """Writes the adapters of a network as a directory that PEFT reads.

  Further layers that train are its `modules_to_save`.

  Args:
    directory: for adapter_config.json and adapter_model.safetensors.
    model: the network of `lora`.
    variables: see `merge_adapters`.
    inputs: see `merge_adapters`.
    names: returns the name of a layer in PyTorch for its path, such as
      "encoder.layer.0.attention.self.query" for "layer0/query".
    base_model: name or path of the pretrained network, for PEFT to load it.
    fan_in_fan_out: whether PyTorch stores kernels of layers with adapters as
      here, such as Conv1D of GPT-2. Other layers that train have the kernels of
      nn.Linear or nn.Conv2d there.

  Raises:
    UserError: if the network has no adapters, or some that PEFT cannot have:
      stacked, or of a layer that also trains itself; if parameters train that
      belong to no layer, such as prompts, or whose layout in PyTorch is not
      known; if there are running statistics; or if two layers have one name.

  Examples:
    >>> moon_jax.save_peft('adapter', adapted, simulation.global_model(),
    ...                    data.train_inputs[:1])
  """
  _, flat = _parts(model, variables, inputs)
  adapted = {path[:-1]: x for path, x in flat.items() if path[-1] == _A}
  trained = {path[:-1] for path in traverse_util.flatten_dict(
      variables['params']) if path[-1] not in adapters.NAMES}
  _check_layers(model, variables, flat, adapted, trained)
  name_of = {path: names('/'.join(path)) for path in (*adapted, *trained)}
  same = [name for name, count in collections.Counter(
      name_of.values()).items() if count > 1]
  require(not same, 'names', 'must return a different name for each layer',
          f'{", ".join(same)} for several', 'Layers that PyTorch joins, such '
          f'as in c_attn of GPT-2, cannot be exported. {_MERGE}')
  tensors = {}
  for path, x in flat.items():
    name, at = name_of.get(path[:-1]), path[:-1]
    if at in adapted and path[-1] in adapters.NAMES:
      tensors[f'{name}.lora_{path[-1][-1].upper()}.weight'] = x.T
    elif at in trained:
      tensors[f'{name}.{"bias" if path[-1] == "bias" else "weight"}'] = (
          jnp.moveaxis(x, (-1, -2), (0, 1)) if path[-1] == 'kernel' else x)
  rank = next(iter(adapted.values())).shape[1]
  layer_names = lambda paths: sorted(name_of[path] for path in paths)
  config = {
      'peft_type': 'LORA', 'r': rank, 'lora_alpha': model.lora_scale * rank,
      'target_modules': layer_names(adapted),
      'modules_to_save': layer_names(trained) or None,
      'lora_dropout': 0., 'bias': 'none', 'task_type': None,
      'fan_in_fan_out': fan_in_fan_out, 'inference_mode': True,
      'base_model_name_or_path': base_model or None}
  folder = pathlib.Path(directory)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'adapter_config.json').write_text(
      json.dumps(config, indent=2) + '\n')
  safetensors.numpy.save_file(
      {f'{_PREFIX}{name}': np.ascontiguousarray(x)
       for name, x in tensors.items()}, folder / 'adapter_model.safetensors',
      metadata={'format': 'pt'})


def _check_layers(model, variables, flat, adapted, trained):
  """Checks that PEFT can have the layers with adapters and those that train."""
  wrong = ['/'.join(path) for path, x in adapted.items()
           if x.ndim > 2 or path in trained]
  require(adapted and not wrong, 'model', 'must have adapters of layers that '
          'are not stacked and do not train themselves',
          ', '.join(wrong) or f'none{model.place}', 'Name other layers')
  require(() not in trained, 'model', 'must train layers only: PEFT has no '
          'names for other parameters', ', '.join(
              name for name, x in variables['params'].items()
              if not isinstance(x, Mapping)),
          'Do not train them beside the adapters')
  require(variables.keys() == {'params'}, 'model', 'must have no running '
          'statistics, which change beside adapters',
          ', '.join(sorted(variables.keys() - {'params'})), _MERGE)
  unclear = ['/'.join(path) for path, x in flat.items() if x.ndim == 3
             and path[-1] == 'kernel' and path[:-1] in trained]
  require(not unclear, 'model', 'must train no kernels of three axes, whose '
          'order in PyTorch depends on the layer', ', '.join(unclear), _MERGE)


def _parts(model, variables, inputs):
  """Returns the frozen state, and all parameters by path."""
  user_model.check_type(model)
  require(model.frozen is not None, 'model', 'must be one of moon_jax.lora or '
          'moon_jax.freeze', f'one whose weights all train{model.place}',
          'Its variables are whole')
  example = jnp.zeros(jnp.shape(inputs), jnp.float32 if np.asarray(
      inputs).dtype == np.uint8 else jnp.result_type(inputs))
  fixed = model.frozen(example)
  return fixed, fixed['params'] | traverse_util.flatten_dict(
      variables['params'])
