"""Saves and loads the final global model, as safetensors and with Orbax.

Examples:

    import moon_jax
    model, variables = moon_jax.load('runs/cifar10-moon-0123abcd')
    logits = model(variables, images).logits
"""

import hashlib
import json
import pathlib
from typing import Any
from typing import NamedTuple
import warnings

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp
import safetensors
import safetensors.numpy

from moon_jax import models
from moon_jax import user_code
from moon_jax.config import Config
from moon_jax.config import is_user_code
from moon_jax.data import augment
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import processes
from moon_jax.errors import UserError
from moon_jax.models import user as user_model
from moon_jax.models.base import Variables
from moon_jax.rundir import checkpoint
from moon_jax.rundir.workdir import write_atomically
from moon_jax.version import __version__

_SAFETENSORS, _ORBAX = 'model.safetensors', 'model'


class TrainedModel(NamedTuple):
  """A trained network with the normalization of its inputs.

  Call it with variables and inputs to compute the network's outputs.

  Attributes:
    network: its init and apply functions take normalized inputs.
    mean: one value per channel, as in `moon_jax.data.dataset.Dataset`.
    std: one value per channel, as in `moon_jax.data.dataset.Dataset`.
    class_names: [K].
    config: the fields of the run's configuration, as in config.json.
  """

  network: models.Model
  mean: tuple[float, ...]
  std: tuple[float, ...]
  class_names: tuple[str, ...]
  config: dict[str, Any]

  def __call__(self, variables: Variables, inputs: jax.Array) -> models.Outputs:
    """Returns the outputs for a batch of inputs without augmentation.

    Args:
      variables: the model's variables, as `load` returns them.
      inputs: [B, ...], as the data set stores them; images are uint8
        [B, H, W, C].
    """
    inputs = augment.normalize(jnp.asarray(inputs), self.mean, self.std)
    outputs, _ = self.network.apply(
        variables, inputs, jnp.ones(len(inputs)), train=False)
    return outputs


def save(directory: pathlib.Path, config: Config, dataset: Dataset,
         variables: Variables) -> None:
  """Writes model.safetensors and model/ to the directory.

  Args:
    directory: the work directory of the run.
    config: the configuration of the run.
    dataset: the data set that the model was trained on.
    variables: numpy arrays, the same in all processes.

  Raises:
    UserError: if they cannot be written.
  """
  note = _note(config, dataset, variables)
  try:
    if checkpoint.has_equal_device_counts():
      ocp.save((directory / _ORBAX).absolute(), variables, overwrite=True,
               custom_metadata=note)
    if processes.is_first():
      write_atomically(
          directory / _SAFETENSORS, _safetensors(variables, note))
  except Exception as error:  # Orbax and TensorStore raise many kinds
    if processes.is_lost_peer_error(error):
      raise
    raise _unwritable(directory, error) from error


def save_local(directory: pathlib.Path, config: Config, dataset: Dataset,
               client: int, variables: Variables) -> None:
  """Writes the local model of a client to CLIENT.safetensors.

  Args:
    directory: of the local models; created if it does not exist.
    config: the configuration of the run.
    dataset: the data set that the model was trained on.
    client: the client, from 0.
    variables: numpy arrays.

  Raises:
    UserError: if the file cannot be written.
  """
  try:
    directory.mkdir(exist_ok=True)
    write_atomically(
        directory / f'{client}.safetensors', _safetensors(
            variables, _note(config, dataset, variables, client=client)))
  except OSError as error:
    raise _unwritable(directory, error) from error


def _note(config, dataset, variables, **more):
  """Returns what `load` needs besides the variables, and a hash of both."""
  note = {
      'moon_jax': __version__,
      'config': config.to_dict() | {'data_dir': '', 'workdir': ''},
      'class_names': list(dataset.class_names),
      'mean': list(dataset.mean), 'std': list(dataset.std),
      'num_tokens': dataset.num_tokens,
      'input_shape': list(dataset.train_inputs.shape[1:]), **more}
  if config.has_user_model():
    note['model_sha256'] = _source_hash(config.model)
  return note | {'sha256': checkpoint.digest(variables, note)}


def _safetensors(variables, note):
  """Returns the content of a safetensors file."""
  return safetensors.numpy.save(
      traverse_util.flatten_dict(variables, sep='.'),
      metadata={'moon_jax': json.dumps(note)})


def _unwritable(directory, error):
  return UserError(
      f'--workdir={directory} must be writable, got '
      f'{checkpoint.first_line(error)}. Free space or change its '
      'permissions: the same command resumes from its last checkpoint')


def to_safetensors(config: Config, dataset: Dataset,
                   variables: Variables) -> bytes:
  """Returns the content of a safetensors file that `load` reads; see `save`."""
  return _safetensors(variables, _note(config, dataset, variables))


def load(path: str | pathlib.Path) -> tuple[TrainedModel, Variables]:
  """Loads the final global model of a finished run.

  Args:
    path: the work directory of the run, or model.safetensors, model/ or
      best.safetensors in it.

  Returns:
    The model, to be called as `model(variables, inputs)`, and its variables,
    {'params': ...} of numpy arrays.

  Raises:
    UserError: if there is no complete model that moon_jax saved, or its
      user-defined network cannot be made: the module that --model named must be
      importable. A warning reports that its file has changed.
  """
  path = pathlib.Path(path).expanduser()
  if (path / _SAFETENSORS).exists():
    path = path / _SAFETENSORS
  elif (path / _ORBAX).exists():
    path = path / _ORBAX
  try:
    if not path.exists():
      raise ValueError('there is no such file')
    if path.is_dir() and not any(path.glob('*METADATA')):
      raise ValueError(f'it holds no {_SAFETENSORS} and no {_ORBAX}/, which a '
                       'run writes at its end')
    note, variables = (_read_orbax if path.is_dir() else _read_safetensors)(
        path)
    expected = note.pop('sha256')
    if expected != checkpoint.digest(variables, note):
      raise ValueError('its hash differs from that of the saved model')
  except Exception as error:  # safetensors and Orbax raise many kinds
    reason = str(error).strip().partition('\n')[0] or type(error).__name__
    raise UserError(
        f'{path} must be a complete model of moon_jax, got an invalid one '
        f'({reason}); give the work directory of a finished run, its '
        f'{_SAFETENSORS} or its {_ORBAX}/') from error
  config = note['config']
  return TrainedModel(
      _network(path, note), tuple(note['mean']), tuple(note['std']),
      tuple(note['class_names']), config), variables


def _source_hash(model):
  return hashlib.sha256(user_code.source('model', model)).hexdigest()


def _network(path, note):
  """Returns the network that a note describes."""
  config, num_classes = note['config'], len(note['class_names'])
  if is_user_code(config['model']):
    if _source_hash(config['model']) != note['model_sha256']:
      warnings.warn(f'--model={config["model"]} has changed since the run that '
                    f'saved {path}; the outputs may differ', stacklevel=3)
    return user_model.make(config['model'], config['model_args'], num_classes,
                           note['num_tokens'])
  return models.make(
      config['model'], num_classes,
      config['projection_dim'] if config['projection_head'] else None,
      config['dtype'], config['norm'], note['num_tokens'],
      config.get('precision', 'highest'), config.get('convolution', 'im2col'))


def _read_safetensors(path):
  with safetensors.safe_open(path, framework='numpy') as file:
    note = json.loads(file.metadata()['moon_jax'])
    flat = {name: file.get_tensor(name) for name in file.keys()}
  return note, traverse_util.unflatten_dict(flat, sep='.')


def _read_orbax(path):
  note = ocp.metadata(path.absolute()).custom_metadata
  return note, jax.tree.map(np.asarray, ocp.load(path.absolute()))
