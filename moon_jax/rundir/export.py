"""The final global model for other programs: safetensors, and Orbax.

    import moon_jax
    model, variables = moon_jax.load('runs/cifar10-moon-0123abcd')
    logits = model(variables, images).logits
"""

import json
import pathlib
from typing import Any
from typing import NamedTuple

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp
import safetensors
import safetensors.numpy

from moon_jax import __version__
from moon_jax import models
from moon_jax.config import Config
from moon_jax.data import augment
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import processes
from moon_jax.errors import UserError
from moon_jax.models.base import Variables
from moon_jax.rundir import checkpoint
from moon_jax.rundir.workdir import write_atomically

_SAFETENSORS, _ORBAX = 'model.safetensors', 'model'


class TrainedModel(NamedTuple):
  """A network with what was done to its inputs; call it with variables.

  Attributes:
    network: init and apply, of normalised inputs.
    mean: of inputs, a channel each, as `moon_jax.data.dataset.Dataset` has it.
    std: likewise.
    class_names: [K].
    config: the run's, as config.json has it.
  """

  network: models.Model
  mean: tuple[float, ...]
  std: tuple[float, ...]
  class_names: tuple[str, ...]
  config: dict[str, Any]

  def __call__(self, variables: Variables, inputs: jax.Array) -> models.Outputs:
    """What the network computes of inputs [B, ...] as the data set stores them.

    Of images that is uint8 [B, H, W, C].
    """
    inputs = augment.normalize(jnp.asarray(inputs), self.mean, self.std)
    outputs, _ = self.network.apply(
        variables, inputs, jnp.ones(len(inputs)), train=False)
    return outputs


def save(directory: pathlib.Path, config: Config, dataset: Dataset,
         variables: Variables) -> None:
  """Writes model.safetensors and model/ into the directory.

  Args:
    directory: a work directory.
    config: of the run.
    dataset: that it was trained on.
    variables: numpy arrays, the same in all processes.

  Raises:
    UserError: where they cannot be written.
  """
  note = {
      'moon_jax': __version__,
      'config': config.to_dict() | {'data_dir': '', 'workdir': ''},
      'class_names': list(dataset.class_names),
      'mean': list(dataset.mean), 'std': list(dataset.std),
      'num_tokens': dataset.num_tokens,
      'input_shape': list(dataset.train_inputs.shape[1:])}
  note['sha256'] = checkpoint.digest(variables, note)
  try:
    if checkpoint.devices_are_even():
      ocp.save((directory / _ORBAX).absolute(), variables, overwrite=True,
               custom_metadata=note)
    if processes.is_first():
      write_atomically(directory / _SAFETENSORS, safetensors.numpy.save(
          traverse_util.flatten_dict(variables, sep='.'),
          metadata={'moon_jax': json.dumps(note)}))
  except Exception as error:  # of many kinds
    if processes.is_lost_peer_error(error):
      raise
    raise UserError(
        f'--workdir={directory} cannot be written '
        f'({checkpoint.first_line(error)}). Make it so: the same command goes '
        'on from its last checkpoint') from error


def load(path: str | pathlib.Path) -> tuple[TrainedModel, Variables]:
  """The global model that a run ended with.

  Args:
    path: the run's work directory, or model.safetensors or model/ in it.

  Returns:
    The network, to be called as `model(variables, inputs)`, and its variables,
    {'params': ...} in numpy arrays.

  Raises:
    UserError: where there is no whole model of moon_jax.
  """
  path = pathlib.Path(path).expanduser()
  if (path / _SAFETENSORS).exists():
    path = path / _SAFETENSORS
  elif (path / _ORBAX).exists():
    path = path / _ORBAX
  try:
    if not path.exists():
      raise ValueError('there is no such file')
    note, variables = (_read_orbax if path.is_dir() else _read_safetensors)(
        path)
    expected = note.pop('sha256')
    if expected != checkpoint.digest(variables, note):
      raise ValueError('it does not hold what was saved')
  except Exception as error:  # of many kinds
    reason = str(error).strip().partition('\n')[0] or type(error).__name__
    raise UserError(
        f'{path} is no whole model of moon_jax ({reason}); give the work '
        f'directory of a finished run, its {_SAFETENSORS} or its '
        f'{_ORBAX}/') from error
  config = note['config']
  network = models.make(
      config['model'], len(note['class_names']),
      config['projection_dim'] if config['projection_head'] else None,
      config['dtype'], config['norm'], note['num_tokens'],
      config.get('precision', 'highest'), config.get('convolution', 'im2col'))
  return TrainedModel(
      network, tuple(note['mean']), tuple(note['std']),
      tuple(note['class_names']), config), variables


def _read_safetensors(path):
  with safetensors.safe_open(path, framework='numpy') as file:
    note = json.loads(file.metadata()['moon_jax'])
    flat = {name: file.get_tensor(name) for name in file.keys()}
  return note, traverse_util.unflatten_dict(flat, sep='.')


def _read_orbax(path):
  note = ocp.metadata(path.absolute()).custom_metadata
  return note, jax.tree.map(np.asarray, ocp.load(path.absolute()))
