"""Saves and loads the models of a run, as safetensors.

Examples:

    import moon_jax
    model, variables = moon_jax.load('runs/digits-moon-0123456789abcdef')
    logits = model(variables, images).logits

    python -m moon_jax.train --init_from=runs/digits-moon-0123456789abcdef ...
"""

import hashlib
import json
import os
import pathlib
from typing import Any, NamedTuple
import warnings
import zipfile

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp
import safetensors
import safetensors.numpy

from moon_jax import models, user_code
from moon_jax.config import Config, parts
from moon_jax.data import augment
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.errors import first_line, require, setting, UserError
from moon_jax.models.base import Variables
from moon_jax.runs import checkpoint
from moon_jax.version import __version__

_SAFETENSORS = 'model.safetensors'
_OTHER_HASH = 'its hash differs from that of the saved model'
_FORMS = ('Give the work directory of a finished run, its model.safetensors, '
          'or one of its checkpoints, such as RUN/checkpoints/10')


class TrainedModel(NamedTuple):
  """A trained network with the normalization of its inputs.

  Call it with variables and inputs to compute the network's outputs.
  """

  network: models.Model  # its functions take normalized inputs
  mean: tuple[float, ...]  # per channel, as in `moon_jax.data.dataset.Dataset`
  std: tuple[float, ...]
  class_names: tuple[str, ...]  # [K]
  config: dict[str, Any]  # the run's configuration, as in config.json
  input_shape: tuple[int, ...] = ()  # of an example of the run
  input_dtype: str = ''  # in the data set of the run; '' if it is not known

  def __call__(self, variables: Variables, inputs: jax.Array) -> models.Outputs:
    """Returns the outputs for a batch of inputs without augmentation.

    Args:
      variables: the model's variables, as `load` returns them.
      inputs: [B, ...], as the data set stores them; images are uint8
        [B, H, W, C], or floating point from 0 to 1.

    Raises:
      UserError: if inputs have other axes or another type than the run's, or
        pixels are out of range.
    """
    inputs = jnp.asarray(inputs)
    self._check(inputs)
    inputs = augment.normalize(inputs, self.mean, self.std)
    outputs, _ = self.network.apply(
        variables, inputs, jnp.ones(len(inputs)), train=False)
    return outputs

  def _check(self, inputs):
    shape, one = [*inputs.shape], self.input_shape
    axes = ''.join(f', {size}' for size in one)
    require(not one or len(shape) == len(one) + 1, 'inputs',
            f'must be a batch [B{axes}], as in the run', f'shape {shape}',
            'Add the axis of the batch: inputs[None]'
            if len(shape) == len(one) else 'Reshape them')
    dtype = inputs.dtype
    if not self.input_dtype or _kind(dtype) == _kind(self.input_dtype):
      return
    got = str(dtype)
    remedy = f"Convert them: inputs.astype('{self.input_dtype}')"
    needed = f'of type {self.input_dtype}'
    if self.input_dtype == 'uint8':
      needed = 'uint8 from 0 to 255, or floating point from 0 to 1'
      if _kind(dtype) == 'float':
        if isinstance(inputs, jax.core.Tracer):  # its values are not known
          return
        low, high = np.min(inputs, initial=0.), np.max(inputs, initial=0.)
        if 0 <= low and high <= 1:
          return
        got += f' from {low:g} to {high:g}'
        if low < 0:
          remedy = 'Pass pixels as they are: the model normalizes them'
    raise UserError('inputs', f'must be {needed}, as in the run', got, remedy)


def _kind(dtype):
  """Returns how `augment.normalize` reads inputs of a type."""
  if jnp.dtype(dtype) == jnp.uint8:
    return 'uint8'
  return 'token' if jnp.issubdtype(dtype, jnp.signedinteger) else 'float'


def to_safetensors(config: Config, dataset: Dataset, variables: Variables,
                   **more: Any) -> bytes:
  """Returns the content of a safetensors file that `load` reads.

  Its metadata hold what `load` needs besides the variables, which are NumPy
  arrays, and a hash of both. `more` are further metadata, in JSON types.
  """
  note = {
      'moon_jax': __version__,
      'config': config.to_dict() | {'data_dir': '', 'workdir': ''},
      'class_names': list(dataset.class_names),
      'mean': list(dataset.mean), 'std': list(dataset.std),
      'num_tokens': dataset.num_tokens,
      'input_shape': list(dataset.train_inputs.shape[1:]),
      'input_dtype': str(dataset.train_inputs.dtype), **more}
  if dataset.task_name != 'classification':
    note['task'] = dataset.task_name
  if config.model.is_own:
    note['model_sha256'] = _source_hash(config.model)
  note |= {'sha256': checkpoint.digest(variables, note)}
  return safetensors.numpy.save(
      traverse_util.flatten_dict(variables, sep='.'),
      metadata={'moon_jax': json.dumps(note)})


def load(path: str | pathlib.Path) -> tuple[TrainedModel, Variables]:
  """Loads the final global model of a finished run.

  Args:
    path: the work directory of the run, or model.safetensors,
      best.safetensors or a file of local_models/ in it.

  Returns:
    The model, to be called as `model(variables, inputs)`, and its variables,
    {'params': ...} of numpy arrays.

  Raises:
    UserError: if there is no complete model that moon_jax saved, or its
      custom network cannot be made: the module that --model named must be
      importable. A warning reports that its file has changed.
  """
  require(isinstance(path, str | os.PathLike), 'path',
          'must be the path of a work directory', f'{path!r:.60}',
          "Pass for example 'runs/digits-moon-0123abcd'")
  path = _final_model(files.user_path(path))
  try:
    if not path.exists():
      raise ValueError('there is no such file')
    if path.is_dir():
      raise ValueError(
          f'it holds no {_SAFETENSORS}, which a run writes at its end')
    note, variables = _read(path)
    if note is None or 'note' in note:
      raise ValueError('it is not the final model of a run')
  except Exception as error:  # safetensors raises many kinds
    raise UserError(
        '', f'{path} must be a complete model of moon_jax',
        f'an invalid one ({first_line(error)})', 'Give the work directory of '
        f'a finished run or its {_SAFETENSORS}') from error
  return TrainedModel(
      _network(path, note), tuple(note['mean']), tuple(note['std']),
      tuple(note['class_names']), note['config'],
      tuple(note.get('input_shape', ())), note.get('input_dtype', '')
      ), variables


def _source_hash(model):
  return hashlib.sha256(user_code.source('model', model.name)).hexdigest()


def _network(path, note):
  """Returns the network that a note describes."""
  part = parts.parse('model', note['config']['model'])
  if part.is_own and _source_hash(part) != note['model_sha256']:
    warnings.warn(f'{setting("model", part)} has changed since the run that '
                  f'saved {path}; the outputs may differ', stacklevel=3)
  return models.network(
      part, num_classes=len(note['class_names']),
      num_tokens=note['num_tokens'], task=note.get('task', 'classification'))


def load_initial(path: str) -> Variables:
  """Returns the initial global model of a run, --init_from, as numpy arrays.

  `path` is one of `_FORMS`, or any other safetensors file, whose tensors are
  named by their path in the tree of variables, such as "params.out.kernel".
  """
  root = files.user_path(path, 'init_from').absolute()
  try:
    if not root.exists():
      raise ValueError('there is no such file or directory')
    file = _final_model(root)
    if file == root and (root / 'metrics.jsonl').exists():
      raise ValueError('the run has no final global model')
    note, tree = _read(file)
    if note is None or 'note' not in note:
      return tree
    # A checkpoint.
    if note['variables_sha256'] != checkpoint.digest(tree['variables'], {}):
      raise ValueError(_OTHER_HASH)
    return jax.tree.map(lambda x: x[0], tree['variables'])  # of one run
  except MemoryError:
    raise
  except Exception as error:  # safetensors and Orbax raise many kinds
    raise UserError(f'init_from={path}', 'must be a model',
                    f'an invalid one ({first_line(error)})', _FORMS) from error


def _final_model(path: pathlib.Path) -> pathlib.Path:
  """Returns the path of the final model in a work directory, or the path."""
  file = path / _SAFETENSORS
  return file if file.exists() else path


def _is_pickle(path):
  """Returns whether a file is a pickle or a zip archive, as torch.save writes.
  """
  with open(path, 'rb') as file:
    return file.read(1) == b'\x80' or zipfile.is_zipfile(path)


def _read(path):
  """Returns the note and the arrays of a model or of a checkpoint.

  Checks the hash of a model, which it removes from the note. The note is None
  if another program wrote the file.
  """
  if path.is_dir():
    note = ocp.metadata(path.absolute()).custom_metadata
    tree = jax.tree.map(np.asarray, ocp.load(path.absolute()))
  else:
    try:
      with safetensors.safe_open(path, framework='numpy') as file:
        text = (file.metadata() or {}).get('moon_jax')
        flat = {name: file.get_tensor(name) for name in file.keys()}
    except safetensors.SafetensorError as error:
      if not _is_pickle(path):
        raise
      raise ValueError(
          'it is a file of PyTorch or a pickle. safetensors.numpy.save_file '
          "writes tensors with this network's names and shapes, such as "
          'params.out.kernel [inputs, outputs]') from error
    note = text and json.loads(text)
    tree = traverse_util.unflatten_dict(flat, sep='.')
  if note is not None and 'note' not in note and (
      note.pop('sha256') != checkpoint.digest(tree, note)):
    raise ValueError(_OTHER_HASH)
  return note, tree
