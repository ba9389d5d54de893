"""Installs missing packages from a directory of wheels, offline."""

from collections.abc import Mapping
import importlib
import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

# Modules that the stages import, and their distributions.
NEEDED = {
    'absl': 'absl-py', 'flax': 'flax', 'hypothesis': 'hypothesis', 'jax': 'jax',
    'matplotlib': 'matplotlib', 'optax': 'optax',
    'orbax.checkpoint': 'orbax-checkpoint', 'platformdirs': 'platformdirs',
    'PIL': 'pillow', 'pytest': 'pytest', 'requests': 'requests',
    'safetensors': 'safetensors', 'scipy': 'scipy', 'sklearn': 'scikit-learn',
    'torch': 'torch',
}


def install(wheels: pathlib.Path, site: pathlib.Path,
            needed: Mapping[str, str] = NEEDED) -> list[str]:
  """Installs the wheels of distributions that are not installed yet.

  Args:
    wheels: the directory of the wheels; nothing is downloaded.
    site: the directory to install into, so that the machine's packages do not
      change. It is added to `sys.path`; child processes need it in PYTHONPATH.
    needed: the distribution of each module.

  Returns:
    The distributions whose modules are still missing.
  """
  if str(site) not in sys.path:
    sys.path.insert(0, str(site))
  importlib.invalidate_caches()
  new = [str(path) for path in sorted(wheels.glob('*.whl'))
         if not _is_installed(path.name.partition('-')[0])]
  if new:
    # One command, because pip replaces directories that several wheels share.
    subprocess.run(
        [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index',
         '--no-deps', '--upgrade', f'--find-links={wheels}',
         f'--target={site}', *new], check=False)
    importlib.invalidate_caches()
  return [name for module, name in needed.items() if not _has_module(module)]


def _is_installed(name):
  try:
    importlib.metadata.version(name)
    return True
  except importlib.metadata.PackageNotFoundError:
    return False


def _has_module(module):
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # the parent package is missing
    return False
