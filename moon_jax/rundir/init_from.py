"""Reads the initial global model of a run, --init_from, from a file or a run.

Examples:

    python -m moon_jax.train --init_from=runs/cifar10-fedavg-0123abcd ...
"""

import json
import pathlib

from flax import traverse_util
import jax
import numpy as np
from orbax.checkpoint import v1 as ocp
import safetensors

from moon_jax.errors import UserError
from moon_jax.models.base import Variables
from moon_jax.rundir import checkpoint

_FORMS = ('give the work directory of a finished run, its model.safetensors, '
          'its model/, or one of its checkpoints, such as RUN/checkpoints/10')


def load(path: str) -> Variables:
  """Returns the variables of a model, as numpy arrays.

  Args:
    path: the work directory of a run; model.safetensors, model/ or
      checkpoints/ROUND in it; or any other safetensors file, whose tensors are
      named by their path in the tree of variables, such as
      "params.out.kernel".

  Raises:
    UserError: if there is no such model, or it is damaged.
  """
  root = pathlib.Path(path).expanduser().absolute()
  try:
    if not root.exists():
      raise ValueError('there is no such file or directory')
    if root.is_file():
      return _read_safetensors(root)
    if (root / 'model.safetensors').exists():
      return _read_safetensors(root / 'model.safetensors')
    if (root / 'model').exists():
      return _read_orbax(root / 'model')
    if (root / 'metrics.jsonl').exists():
      raise ValueError('the run has no final global model')
    return _read_orbax(root)
  except MemoryError:
    raise
  except Exception as error:  # safetensors and Orbax raise many kinds
    raise UserError(f'--init_from={path} must be a model, got an invalid one '
                    f'({checkpoint.first_line(error)}); {_FORMS}') from error


def fingerprint(variables: Variables) -> str:
  """Returns eight hexadecimal digits that identify names, shapes and values.

  They do not depend on the form of the file.
  """
  return checkpoint.digest(variables, {})[:8]


def _read_safetensors(path):
  with safetensors.safe_open(path, framework='numpy') as file:
    note = (file.metadata() or {}).get('moon_jax')
    flat = {name: file.get_tensor(name) for name in file.keys()}
  variables = traverse_util.unflatten_dict(flat, sep='.')
  if note is not None:  # moon_jax wrote it
    _check_note(variables, json.loads(note))
  return variables


def _read_orbax(path):
  """Reads model/ or a checkpoint, which has other fields than "variables"."""
  metadata = ocp.metadata(path).custom_metadata
  tree = jax.tree.map(np.asarray, ocp.load(path))
  if 'note' not in metadata:
    _check_note(tree, metadata)
    return tree
  variables = jax.tree.map(lambda x: x[0], tree['variables'])  # of one run
  # Earlier versions saved a hash of the complete state only, whose types are
  # not known here.
  expected = metadata.get('variables_sha256')
  if expected and expected != checkpoint.digest(tree['variables'], {}):
    raise ValueError('its hash differs from that of the saved model')
  return variables


def _check_note(variables, note):
  note = dict(note)
  if note.pop('sha256') != checkpoint.digest(variables, note):
    raise ValueError('its hash differs from that of the saved model')
