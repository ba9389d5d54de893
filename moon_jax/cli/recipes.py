"""Recipes: the flag files of experiments/ that need the package only.

`setup.py` copies all flag files into the wheel. In a clone, and if it is
installed with `pip install -e`, they are read where they are.
"""

import pathlib
import re

from moon_jax.config import spelling
from moon_jax.errors import UserError

_PACKAGE = pathlib.Path(__file__).parents[1]
# A flag that names a module or a file of experiments/.
_NEEDS_MORE = re.compile(r'^--.*\bexperiments[./]', re.MULTILINE)


def paths() -> dict[str, pathlib.Path]:
  """Returns the flag file of each recipe, by its name."""
  folder = _PACKAGE / 'recipes'
  if not folder.is_dir():
    folder = _PACKAGE.parent / 'experiments'
  return {path.stem: path for path in sorted(folder.glob('*.flags'))
          if not _NEEDS_MORE.search(path.read_text('utf-8'))}


def find(name: str) -> pathlib.Path:
  """Returns the flag file of a recipe.

  Raises:
    UserError: if there is none of this name.
  """
  known = paths()
  if name not in known:
    raise UserError(
        'recipe', f'must be one of {", ".join(known)}', name or 'none',
        spelling.remedy('recipe', name, known)
        or '--help recipe describes them, and --flagfile=FILE reads your own')
  return known[name]


def describe() -> dict[str, str]:
  """Returns the first sentence of each recipe, by its name."""
  texts = {}
  for name, path in paths().items():
    lines = path.read_text('utf-8').splitlines()
    count = next(i for i, line in enumerate(lines) if not line.strip('# '))
    text = ' '.join(line.strip('# ') for line in lines[:count])
    texts[name] = re.split(r'\.(?<!et al\.) ', f'{text} ')[0] + '.'
  return texts
