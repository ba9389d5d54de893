"""Adds recipes to the wheel; pyproject.toml has everything else."""

import pathlib

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
  """Copies the flag files that `moon_jax.cli.recipes` finds."""

  def run(self):
    super().run()
    if not self.editable_mode:
      folder = pathlib.Path(self.build_lib) / 'moon_jax' / 'recipes'
      self.mkpath(str(folder))
      for path in _recipes():
        self.copy_file(str(path), str(folder))


def _recipes():
  """Returns the flag files that need the package only."""
  root = pathlib.Path(__file__).parent
  return [path for path in sorted((root / 'experiments').glob('*.flags'))
          if 'experiments' not in ''.join(
              line for line in path.read_text('utf-8').splitlines()
              if line.startswith('--'))]


setup(cmdclass={'build_py': BuildWithRecipes})
