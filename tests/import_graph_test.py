"""The structure of the package: no circles, no imports upwards.

A room is a directory of moon_jax/, or a module at its root.
"""

import ast
import functools
import graphlib
import os
import pathlib
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).parents[1] / 'moon_jax'

# From bottom to top. A room may import rooms below it.
LAYERS = (
    'version', 'errors', 'html', 'platforms', 'debugging', 'user_code',
    'config', 'losses', 'trees', 'tasks', 'optimizers', 'learning_rates',
    'distributed', 'data', 'models', 'algorithms', 'topologies', 'methods',
    'engine', 'simulation', 'leakage', 'view', 'loggers', 'runs', 'cli',
    'results', 'tuning', 'doctor', 'train', 'data_command', '__main__',
    'moon_jax')

MAX_LINES = 60  # of a function, see num_lines


def room(module: str) -> str:
  """Returns the directory of a module, or its name at the package's root.

  The commands are a room of their own, wherever they are.
  """
  if module.endswith('.__main__'):
    return '__main__'
  return module.split('.')[1] if '.' in module else module


@functools.cache
def imports() -> dict[str, set[str]]:
  """Returns for each module of the package the modules that it imports.

  Imports within functions count.
  """
  paths = {}
  for path in PACKAGE.rglob('*.py'):
    parts = path.relative_to(PACKAGE.parent).with_suffix('').parts
    paths['.'.join(p for p in parts if p != '__init__')] = path
  graph = {}
  for module, path in paths.items():
    graph[module] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      names = []
      if isinstance(node, ast.ImportFrom) and node.module:
        names = [f'{node.module}.{alias.name}' for alias in node.names]
        names = [name if name in paths else node.module for name in names]
      elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      graph[module].update(
          name for name in names if name in paths and name != module)
  return graph


def rooms() -> dict[str, set[str]]:
  """Returns for each room the other rooms that it imports."""
  graph = {}
  for module, imported in imports().items():
    graph.setdefault(room(module), set()).update(
        room(other) for other in imported if room(other) != room(module))
  return graph


def test_modules_have_no_circles():
  graphlib.TopologicalSorter(imports()).prepare()  # raises with the circle


def test_rooms_import_only_rooms_below():
  assert set(rooms()) == set(LAYERS)
  assert {'errors', 'config', 'losses'} <= rooms()['methods']
  upwards = [(name, other) for name, others in rooms().items()
             for other in others if LAYERS.index(other) > LAYERS.index(name)]
  assert not upwards


def test_functions_are_short():
  assert not {
      f'{path.relative_to(PACKAGE)}: {node.name}': lines
      for path in PACKAGE.rglob('*.py')
      for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
      if isinstance(node, ast.FunctionDef)
      and (lines := num_lines(node)) > MAX_LINES}


def test_a_run_imports_only_what_it_uses(tmp_path):
  """It draws nothing and downloads nothing. The packages cannot be imported."""
  packages = ('IPython', 'PIL', 'datasets', 'dp_accounting', 'flax.nnx',
              'h5py', 'markdown_it', 'matplotlib', 'pandas', 'requests',
              'scipy', 'sklearn', 'tokenizers')
  argv = ['train', '--dataset=digits', '--model=mlp', '--algorithm=fedavg',
          '--num_rounds=1', '--local_epochs=1', '--workdir=run']
  program = (f'import sys; sys.modules.update(dict.fromkeys({packages})); '
             f'sys.argv = {argv}; from moon_jax import train; train.main()')
  done = subprocess.run([sys.executable, '-c', program], cwd=tmp_path,
                        env={**os.environ, 'PYTHONPATH': str(PACKAGE.parent)},
                        text=True, capture_output=True, check=False)
  assert not done.returncode, done.stderr
  assert (tmp_path / 'run/summary.json').exists()


def num_lines(function: ast.FunctionDef) -> int:
  """Returns the lines of a function, without docstring and inner functions."""
  lines = lambda node: node.end_lineno - node.lineno + 1
  inner = [node for node in function.body if isinstance(node, ast.FunctionDef)]
  if ast.get_docstring(function) is not None:
    inner.append(function.body[0])
  return lines(function) - sum(map(lines, inner))
