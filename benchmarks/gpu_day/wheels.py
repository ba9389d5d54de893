"""Installs from wheels that were brought along what cannot be imported."""

from collections.abc import Mapping
import importlib
import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

# What the stages import, and the distribution that has it.
NEEDED = {
    'absl': 'absl-py', 'flax': 'flax', 'hypothesis': 'hypothesis', 'jax': 'jax',
    'matplotlib': 'matplotlib', 'optax': 'optax',
    'orbax.checkpoint': 'orbax-checkpoint', 'platformdirs': 'platformdirs',
    'PIL': 'pillow', 'pytest': 'pytest', 'requests': 'requests',
    'safetensors': 'safetensors', 'scipy': 'scipy', 'sklearn': 'scikit-learn',
    'torch': 'torch', 'tqdm': 'tqdm',
}


def install(wheels: pathlib.Path, site: pathlib.Path,
            needed: Mapping[str, str] = NEEDED) -> list[str]:
  """Installs the wheels of distributions that are not installed yet.

  Args:
    wheels: the directory of the wheels; nothing is downloaded.
    site: is installed into, so that the machine's packages stay as they are,
      and becomes part of `sys.path`; children need it in PYTHONPATH.
    needed: distributions by the module that they have.

  Returns:
    The distributions whose modules still cannot be found.
  """
  if str(site) not in sys.path:
    sys.path.insert(0, str(site))
  importlib.invalidate_caches()
  new = [str(path) for path in sorted(wheels.glob('*.whl'))
         if not _is_installed(path.name.partition('-')[0])]
  if new:
    # All at once: pip replaces a directory that two of them share.
    subprocess.run(
        [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index',
         '--no-deps', '--upgrade', f'--find-links={wheels}',
         f'--target={site}', *new], check=False)
    importlib.invalidate_caches()
  return [name for module, name in needed.items() if not _is_there(module)]


def _is_installed(name):
  try:
    importlib.metadata.version(name)
    return True
  except importlib.metadata.PackageNotFoundError:
    return False


def _is_there(module):
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # of the package around it
    return False
