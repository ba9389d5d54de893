"""Finds the data sets in a directory, without reading them."""

import pathlib

from moon_jax.data import sources
from moon_jax.doctor.finding import FAILED
from moon_jax.doctor.finding import Finding
from moon_jax.doctor.finding import NOTE
from moon_jax.doctor.finding import OK

# Data sets of other forms -> patterns of their files.
_OTHERS = {
    'tiny_imagenet': ('tiny-imagenet-200', 'tiny-imagenet-200.zip'),
    'shakespeare or femnist of LEAF': ('train/*.json',),
}


def check(data_dir: str) -> Finding:
  """Finds files and directories by their published names.

  Args:
    data_dir: the value of --data_dir; '' for none.
  """
  if not data_dir:
    return Finding(NOTE, 'digits and breast_cancer are installed; '
                   '--data_dir=DIR looks for others')
  root = pathlib.Path(data_dir).expanduser()
  if not root.is_dir():
    return Finding(FAILED, f'--data_dir={data_dir} is not a directory: name '
                   'the one that holds the data sets')
  found = {name: [str(path.relative_to(root)) for path in published.find(root)]
           for name, published in sources.PUBLISHED.items()}
  for name, patterns in _OTHERS.items():
    found[name] = sorted(str(path.relative_to(root)) for pattern in patterns
                         for path in root.glob(pattern))[:1]
  named = [f'{name} ({paths[0]})' for name, paths in found.items() if paths]
  if not named:
    return Finding(FAILED, f'none found in --data_dir={data_dir}: name the '
                   'directory that holds, for example, cifar-10-batches-py/',
                   {'found': found})
  missing = [name for name, paths in found.items() if not paths]
  return Finding(
      OK, f'found in {data_dir}: {", ".join(named)}. Not found: '
      f'{", ".join(missing) or "none"}. Contents are not checked',
      {'found': found})
