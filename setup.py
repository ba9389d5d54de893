"""Adds flag files to the wheel; pyproject.toml has everything else."""

import pathlib

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
  """Copies the flag files, among which are the recipes."""

  def run(self):
    super().run()
    if not self.editable_mode:
      folder = pathlib.Path(self.build_lib) / 'moon_jax' / 'recipes'
      self.mkpath(str(folder))
      experiments = pathlib.Path(__file__).parent / 'experiments'
      for path in sorted(experiments.glob('*.flags')):
        self.copy_file(str(path), str(folder))


setup(cmdclass={'build_py': BuildWithRecipes})
