"""Writes the tables of docs/methods.md and other lists of methods.

python docs/site/method_pages.py
"""

import ast
from collections.abc import Callable
import inspect
import json
import pathlib
import re
import sys

import numpy as np

from moon_jax import optimizers, trees
from moon_jax.config import Config, parts
from moon_jax.config.kinds import METHODS
from moon_jax.data.dataset import Dataset
from moon_jax.methods import registry
from moon_jax.models import simple_cnn
from moon_jax.models.adapters import lora
from moon_jax.simulation import round_spec
from moon_jax.topologies.base import star

ROOT = pathlib.Path(__file__).parents[2]

KINDS = {
    'global': ('One model for all clients', 'learn one model for all clients'),
    'personal': ('A model for each client', 'learn a model for each client'),
    'reference': ('To compare with', 'train without averaging'),
}
# Methods whose equations docs/methods.md has as formulas.
_WITH_FORMULAS = ('fedavg', 'fedprox', 'moon', 'scaffold', 'fednova', 'solo')
_WITHOUT_SECTION = ('moon_l2', 'centralized')


def tables(page: str) -> str:
  """Returns the text of docs/methods.md with its tables of methods."""
  for kind, (title, _) in KINDS.items():
    rows = ''.join(_row(name) + '\n' for name, method
                   in registry.METHODS.items() if method.kind == kind)
    page = re.sub(rf'(\n## {title}\n\n)(\|.*\n)*',
                  lambda match: f'{match[1]}{_TABLE_HEAD}\n{rows}', page)
  return page


def with_sections(page: str) -> str:
  """Returns the page as the site shows it, with all equations beside code.

  The repository has the equations only in the files of the methods, to which
  the tables link; on the site they link to the sections.
  """
  names = [name for name in registry.METHODS
           if name not in (*_WITH_FORMULAS, *_WITHOUT_SECTION)]
  for name in names:
    title = registry.METHODS[name].title
    page = page.replace(
        f'[{title}](../{_path_of(name)})', f'[{title}](#{_anchor(title)})')
  return page.replace(
      '<!-- methods -->', '\n\n'.join(map(_section, names)))


_COLUMNS = ('method', 'paper', 'keeps', 'receives', 'sends', 'arguments',
            'released code')
_TABLE_HEAD = f'| {" | ".join(_COLUMNS)} |\n|{"---|" * len(_COLUMNS)}'


# Golden values of code that is not of the authors of the method.
_THIRD_PARTY = ('fedlc', 'fedrs', 'fedper', 'fedrod', 'mimelite',
                'perfedavg_fo')
_GOLDEN = ROOT / 'tests/papers/golden'
# Of values in another file, tests/papers/low_rank_golden.npz.
_LOW_RANK = {'fedsalora': (
    'Pengxin-Guo/FedSA-LoRA', 'fc276b5ead4208c75fb0b2dd16923f307afb3acd')}


def _sources():
  """Yields the name of each file of golden values, a link, and its source."""
  for path in sorted(_GOLDEN.glob('*.npz')):
    meta = json.loads(str(np.load(path)['meta']))
    repo = meta['repo'].removeprefix('https://github.com/').partition(' ')[0]
    yield path.stem, _link(repo, meta['commit']) + ', third party' * (
        path.stem in _THIRD_PARTY), meta


def _link(repo, commit):
  return f'[{repo}](https://github.com/{repo}/tree/{commit})'


def released_code(name: str) -> str:
  """Returns links to the code whose results are golden values."""
  if name in _LOW_RANK:
    return _link(*_LOW_RANK[name])
  return ', '.join(dict.fromkeys(
      link for stem, link, _ in _sources()
      if stem.partition('_')[0] == name))


def golden_page() -> str:
  """Returns tests/papers/golden/README.md."""
  def text(value):
    if isinstance(value, dict):
      return ', '.join(f'{name} {text(x)}' for name, x in value.items())
    if isinstance(value, list):
      return '; '.join(map(text, value))
    return str(value).replace('|', '/').replace('\n', ' ')

  rows = [f'| {stem} | {link} | {text(meta["files"])} | '
          f'{text(meta.get("hyperparameters", ""))} | '
          f'{text(meta.get("weighting", ""))} | '
          f'{text(meta.get("patched", meta.get("patches", "")))} |'
          for stem, link, meta in _sources()]
  return '''# Results of released code

What released code computes on the federation of `problem.npz` (described in
`plain.py` of `../../support/papers`) in float64: the global weights after each
of three rounds with all clients, and for personal methods the models of clients
after the last one.
The code was imported and run with another data set; nothing of it is here.

| file | code | files | hyperparameters | weights | changed to run it |
|---|---|---|---|---|---|
''' + '\n'.join(rows) + '\n'


def _row(name):
  method = registry.METHODS[name]
  paper = f'[{method.paper}]({method.url})' if method.paper else ''
  target = (f'#{_anchor(method.title)}' if name in _WITH_FORMULAS else
            '#the-l2-ablation-of-moon' if name == 'moon_l2' else
            f'../{_path_of(name)}')
  link = f'[{method.title}]({target})'
  keeps, receives, sends = sizes(name)
  _, entries = parts.describe('algorithm', name)
  arguments = ' '.join(f'`{x.name}={x.default}`' for x in entries)
  return (f'| {link} `{name}` | {paper} | {keeps} | {receives} | {sends} | '
          f'{arguments} | {released_code(name)} |')


def sizes(name: str) -> tuple[str, str, str]:
  """Returns what a client keeps, receives and sends, in sizes of the model."""
  algorithm = registry.make(Config(
      algorithm=name, num_clients=1 if name == 'centralized' else 10))
  model, images = simple_cnn(10), np.zeros((1, 32, 32, 3), np.float32)
  if name == 'fedsalora':  # in sizes of the adapters
    model = lora(model, rank=8)
  labels = np.zeros(1, np.int32)
  traced = round_spec.trace(
      Dataset('images', images, labels, images, labels, tuple('0123456789')),
      model, algorithm, optimizers.sgd())
  received, sent = (x_C.mean() for x_C in round_spec.wire_bytes(
      algorithm, traced, star(), 10))
  return tuple(_times(x / trees.bytes_of(traced.model))
               for x in (traced.client_bytes, received, sent))


def _times(x):
  return '0' if not x else '< 0.01' if x < .01 else f'{x:.2f}'.rstrip(
      '0').rstrip('.')


def _factory(name):
  return inspect.unwrap(parts.function_of('algorithm', parts.Part(name)))


def _path_of(name):
  return pathlib.Path(_factory(name).__module__.replace('.', '/') + '.py')


def _section(name):
  """Returns the equations and the code of a method, side by side."""
  method = registry.METHODS[name]
  path = _path_of(name)
  functions = [node.name for node in ast.parse(
      (ROOT / path).read_text(encoding='utf-8')).body
               if isinstance(node, ast.FunctionDef)]
  return f'''### {method.title}

[{method.paper}]({method.url}). `--algorithm={name}`, `moon_jax.{name}()`.

<div class="beside" markdown="1">
<div markdown="1">

```text
{inspect.getdoc(sys.modules[_factory(name).__module__])}
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
  """Returns README.md with the lists of the methods, linked to papers."""
  lines = ''
  for kind, (_, words) in KINDS.items():
    titles = [f'[{x.title}]({x.url})' if x.url else x.title
              for name, x in registry.METHODS.items()
              if x.kind == kind and name != 'moon_l2']
    lines += (f'| [{len(titles)} methods](docs/methods.md) that {words} | '
              f'{", ".join(titles)} |\n')
  return re.sub(r'(\| \[\d+ methods\]\S+ that .*\n)+', lambda _: lines, text)


def stub(text: str) -> str:
  """Returns moon_jax/__init__.pyi with the functions of all methods."""
  lines = re.findall(r'^from \.methods\..*\n', text, re.MULTILINE)
  missing = {f'from .methods.{name} import {name}\n' for name in METHODS
             if not any(line.startswith(f'from .methods.{name} ')
                        for line in lines)}
  return text.replace(''.join(lines), ''.join(sorted({*lines, *missing})))


def api_page(text: str) -> str:
  """Returns docs/api/algorithms.md with the functions of all methods."""
  head, title, rest = text.partition('## Methods\n')
  section, next_title, rest = rest.partition('## ')
  section += ''.join(f'::: moon_jax.{name}\n\n' for name in METHODS
                     if f'::: moon_jax.{name}\n' not in section)
  return head + title + section + next_title + rest


def rewrite(path: str, change: Callable[[str], str]) -> None:
  """Replaces the text of a file."""
  file = ROOT / path
  file.write_text(change(file.read_text(encoding='utf-8')), encoding='utf-8')


if __name__ == '__main__':
  rewrite('docs/methods.md', tables)
  rewrite('tests/papers/golden/README.md', lambda _: golden_page())
  rewrite('README.md', readme)
  rewrite('moon_jax/__init__.pyi', stub)
  rewrite('docs/api/algorithms.md', api_page)
