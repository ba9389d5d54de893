"""HDF5 files of TensorFlow Federated, read with h5py.

TFF's simulation/datasets/hdf5_client_data.py describes the layout: a group
"examples" holds one group per client, which holds one array per feature, all of
equal length:

    examples/CLIENT/pixels float32 [n, 28, 28]
    examples/CLIENT/label  int32 [n] or [n, 1]
"""

from collections.abc import Callable
import pathlib

import numpy as np

from moon_jax.errors import UserError

_NO_H5PY = ('h5py is needed to read {}; install it: pip install h5py (or pip '
            "install 'moon_jax[h5]')")


def load(paths: dict[str, pathlib.Path], input_name: str,
         convert: Callable) -> dict[str, np.ndarray]:
  """Reads a training and a test file, client by client.

  Args:
    paths: of 'train' and 'test'.
    input_name: name of the inputs in the files; labels are "label".
    convert: maps the inputs and labels [n] of a client to the arrays of the
      data set; may raise ValueError.

  Returns:
    x_train, y_train, client_train, and the same of the test examples
    (`moon_jax.data.sources.arrays`). Clients are sorted by name.

  Raises:
    UserError: naming the file, and the client if one is to blame.
  """
  try:
    import h5py
  except ImportError as error:
    raise UserError(_NO_H5PY.format(paths['train'])) from error
  loaded = {}
  for part, path in paths.items():
    try:
      with h5py.File(path, 'r') as file:
        inputs, labels, counts = _read(file['examples'], input_name, convert)
    # h5py raises any of these for damaged files.
    except (OSError, LookupError, RuntimeError, ValueError, TypeError,
            AttributeError) as error:
      reason = str(error).partition('\n')[0]
      raise UserError(
          f'--data_dir: {path} cannot be read as a file of TensorFlow Federated'
          f' ({reason}). Unpack or download it again') from error
    loaded[f'x_{part}'] = np.concatenate(inputs)
    loaded[f'y_{part}'] = np.concatenate(labels)
    loaded[f'client_{part}'] = np.repeat(np.array(list(counts)),
                                         list(counts.values()))
  if not np.isin(loaded['client_test'], loaded['client_train']).all():
    del loaded['client_test']
  return loaded


def _read(clients, input_name, convert):
  """Returns inputs and labels of each client, and the sizes by client."""
  inputs, labels, counts = [], [], {}
  for client in sorted(clients):
    try:
      x, y = clients[client][input_name][()], clients[client]['label'][()]
      y = y.reshape(-1)
      if len(x) != len(y):
        raise ValueError(f'{len(x):,} inputs but {len(y):,} labels')
      x, y = convert(x, y)
    except (OSError, LookupError, RuntimeError, ValueError, TypeError,
            AttributeError) as error:
      raise ValueError(f'client {client!r:.60}: {error}') from error
    inputs.append(x)
    labels.append(y)
    counts[client] = len(y)
  if not sum(counts.values()):
    raise ValueError('no client has an example')
  return inputs, labels, counts
