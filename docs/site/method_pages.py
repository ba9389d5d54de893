"""Writes docs/methods.md and the methods of README.md from the registry.

python docs/site/method_pages.py
"""

import ast
import inspect
import pathlib
import re
import sys

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, registry
from moon_jax.config import Config
from moon_jax.models import simple_cnn

ROOT = pathlib.Path(__file__).parents[2]

KINDS = {
    'global': ('One model for all clients', 'learn one model for all clients'),
    'personal': ('A model for each client', 'learn a model for each client'),
    'reference': ('To compare with', 'compare with'),
}
# Methods of docs/algorithms.md, which has their equations as formulas.
_WITH_FORMULAS = ('fedavg', 'fedprox', 'moon', 'scaffold', 'fednova', 'solo')
_SERVER_STEPS = (
    ('FedAvgM', 'Hsu et al. 2019', 'https://arxiv.org/abs/1909.06335'),
    ('FedAdam, FedYogi, FedAdagrad', 'Reddi et al. 2021',
     'https://arxiv.org/abs/2003.00295'),
    ('DP-FedAvg', 'McMahan et al. 2018', 'https://arxiv.org/abs/1710.06963'))


def page() -> str:
  """Returns docs/methods.md."""
  parts = [_HEAD]
  for kind, (title, _) in KINDS.items():
    rows = [_row(name) for name, method in registry.METHODS.items()
            if method.kind == kind]
    parts.append(f'## {title}\n\n{_TABLE_HEAD}\n' + '\n'.join(rows))
  parts += [_section(name) for name in registry.METHODS
            if name not in (*_WITH_FORMULAS, 'centralized')]
  return '\n\n'.join(parts) + '\n'


_HEAD = '''# Methods

The methods that are built in: `--algorithm=NAME` on the command line, `moon_jax.NAME()` in Python. Their
arguments are those of the functions: `--algorithm_args=alpha=0.1,lam=1` sets them, and `--grid
alpha=0.01,0.1` of `moon-jax sweep` tries several. Each is compared with its paper's update, written in plain
NumPy, and with the code that its authors released where that runs ([how](#how-they-are-checked)).

A client *keeps* state between rounds, *receives* at the start of a round and *sends* at its end so many
times the size of the model, here the paper's CNN for CIFAR-10 with 10 clients. The equations of the oldest
methods stand in [algorithms.md](algorithms.md), those of the others [below](#equations-and-code). Server
steps such as FedAdam (`--server_optimizer`, `--server_momentum`) combine with any method that has a server.

## How they are checked

| what | where |
|---|---|
| three rounds of four unequal clients against the paper's update in NumPy, to 1e-5 | [papers_test.py](../tests/papers/papers_test.py) |
| the same against code that the authors released | [golden](../tests/papers/golden/README.md) |
| results do not depend on lanes, padding, the order of clients, devices or resuming; no program compiles twice | [algorithms_test.py](../tests/algorithms/algorithms_test.py) |
| where a paper and its released code differ | [differences](papers_and_code.md) |'''

_TABLE_HEAD = '''| method | paper | keeps | receives | sends | arguments |
|---|---|---|---|---|---|'''


def _row(name):
  method = registry.METHODS[name]
  paper = f'[{method.paper}]({method.link})' if method.paper else ''
  link = (f'[{method.title}](algorithms.md#{_anchor(method.title)})'
          if name in _WITH_FORMULAS else
          f'[{method.title}](#{_anchor(method.title)})'
          if name != 'centralized' else method.title)
  keeps, receives, sends = sizes(name)
  arguments = ' '.join(
      f'`{key}={x.default}`' for key, x in method.arguments.items())
  flags = ' '.join(f'`--{flag}`' for flag in method.flags
                   if flag not in registry.COMBINING)
  return (f'| {link} `{name}` | {paper} | {keeps} | {receives} | {sends} | '
          f'{" ".join(filter(None, (arguments, flags)))} |')


def sizes(name: str) -> tuple[str, str, str]:
  """Returns what a client keeps, receives and sends, in sizes of the model."""
  algorithm = registry.make(Config(
      algorithm=name, num_clients=1 if name == 'centralized' else 10,
      momentum=0., mu=registry.METHODS[name].default_mu))
  model, example = simple_cnn(10), jnp.zeros((1, 32, 32, 3))

  def trace(key):
    view = base.first_view(algorithm, model.init(key, example), 10)
    batch = base.Batch(example, jnp.zeros(1, jnp.int32), jnp.ones(1))
    download = () if algorithm.per_client_init else view.variables
    return view.variables, (
        view.client, (download, view.server),
        base.first_message(algorithm, model, view, batch))

  variables, trees = jax.eval_shape(trace, jax.random.key(0))
  count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  return tuple(_times(count(tree) / count(variables)) for tree in trees)


def _times(x):
  return '0' if not x else '< 0.01' if x < .01 else f'{x:.2f}'.rstrip(
      '0').rstrip('.')


def _section(name):
  """Returns the equations and the code of a method, side by side."""
  method = registry.METHODS[name]
  module = sys.modules[method.factory.__module__]
  path = pathlib.Path(inspect.getsourcefile(module)).relative_to(ROOT)
  functions = [node.name for node in ast.parse(
      (ROOT / path).read_text(encoding='utf-8')).body
               if isinstance(node, ast.FunctionDef)]
  return f'''### {method.title}

[{method.paper}]({method.link}). `--algorithm={name}`, `moon_jax.{name}()`.

<div class="beside" markdown="1">
<div markdown="1">

```text
{inspect.getdoc(module)}
```

</div>
<div markdown="1">

[{path.name}](../{path})

<!-- code: {path} {", ".join(functions)} -->

</div>
</div>'''


def _anchor(title):
  return re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-')


def readme(text: str) -> str:
  """Returns README.md with the lists of the methods."""
  lines = []
  for kind, (_, words) in KINDS.items():
    found = [f'{x.title} ([{x.paper}]({x.link}))' if x.paper else x.title
             for x in registry.METHODS.values() if x.kind == kind]
    lines.append(f'| {len(found)} methods that {words} | {", ".join(found)} |')
  steps = [f'{title} ([{paper}]({link}))' for title, paper, link
           in _SERVER_STEPS]
  lines.append(f'| server steps | {", ".join(steps)} |')
  return re.sub(r'(?<=\n)\| \d+ methods that learn one(.*\n)*?\| server steps '
                r'.*(?=\n)', lambda _: '\n'.join(lines), text)


if __name__ == '__main__':
  (ROOT / 'docs/methods.md').write_text(page(), encoding='utf-8')
  _README = ROOT / 'README.md'
  _README.write_text(
      readme(_README.read_text(encoding='utf-8')), encoding='utf-8')
