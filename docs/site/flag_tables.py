"""Writes the tables of docs/flags.md, and docs/parts.md, from the code.

python docs/site/flag_tables.py
"""

import pathlib
import re

from moon_jax.config import Config, FACTS, KINDS, Part, parts, PARTS, TOPICS


def tables(page: str) -> str:
  """Returns the text of docs/flags.md with the tables of its topics."""
  for title, names in TOPICS.items():
    rows = ''.join(map(_row, names))
    page = re.sub(rf'(\n## {title}\n[^|]*\|[^|]*\|[^|]*\|[^|]*\|\n\|[|-]*\n)'
                  r'(\|.*\n)*', lambda match: match[1] + rows, page)
  return page


def _row(name):
  facts, default = FACTS[name], getattr(Config, name)
  shown = (('off', 'on')[default] if isinstance(default, bool) else
           'empty' if default == '' else
           f'`{default}`' if isinstance(default, str | Part)
           else parts.show(default))
  text = re.sub(r'--\w+(=[\w.]+)?', r'`\g<0>`', facts['help'])
  text = re.sub(r'\(docs/(\w+\.md)\)', r'([\1](\1))', text)
  if facts['page']:
    text += f' See [{facts["page"].partition("#")[0]}]({facts["page"]}).'
  if facts['choices']:
    text += f' Values: {", ".join(f"`{x}`" for x in facts["choices"])}.'
  if facts['is_input']:
    text += ' *(the path is free; the content must not change)*'
  elif facts['role'] in ('stop', 'speed', 'place'):
    text += ' *(free)*'
  return f'| `--{name}` | {shown} | {text} |\n'


def parts_page() -> str:
  """Returns docs/parts.md: all functions of all kinds, with arguments."""
  values = ['| kind | your function returns | values of the run |',
            '|---|---|---|', *(
                f'| {name} | {known.returns} | '
                f'{", ".join(f"`{x}`" for x in known.values)} |'
                for name, known in KINDS.items() if known.returns)]
  lines = [_PARTS.strip().replace('{values}', '\n'.join(values)), '']
  for kind in ('dataset', *PARTS):
    lines += [f'## {kind}', '', FACTS[kind]['help'], '',
              f'Example: `--{kind}=\'{KINDS[kind].example}\'`', '',
              '| function | arguments | |', '|---|---|---|']
    for name in KINDS[kind].functions:
      summary, entries = parts.describe(kind, name)
      shown = '<br>'.join(
          f'`{x.name}`' + (f' = `{x.default}`' if x.default else ', required')
          + (f' ({x.limits})' if x.limits else '') + (
              f': {x.help}' if x.help else '') for x in entries)
      lines.append(f'| `{name}` | {_cell(shown)} | {_cell(summary)} |')
    lines.append('')
  return '\n'.join(lines)


def _cell(text):
  return text.replace('|', '\\|')


_PARTS = """
# Parts of a run

A part is a function with arguments, written as a call: `moon(mu=5)`, `dirichlet(beta=0.1)`,
`fedbuff(concurrency=10, buffer_size=5, staleness=polynomial(exponent=1))`. On the command line you can write
`--algorithm='moon(mu=5)'`, or `--algorithm=moon --algorithm.mu=5`, which needs no quotes. Later flags replace earlier ones. A
call replaces the whole part with all its arguments. Calls are also valid in flag files, in TOML files, in `--grid` and in
Python (`mj.Config(algorithm='moon(mu=5)')`). config.json and the tables of results contain them. `--dataset` is a name, or
such a call.

Arguments are numbers, True or False, None, lists, words without quotes, or calls. `moon-jax train --help algorithm.moon`
prints the arguments of a function.

**Your own function** is `MODULE:FUNCTION(argument=value)`. `MODULE` is imported from the current directory or `PYTHONPATH`.
The signature of the function decides which arguments are valid:

```python
from typing import Annotated, Literal
from annotated_types import Ge
import moon_jax as mj

def fedhalf(fraction: Annotated[float, Ge(0)] = 0.5,
            num_clients: mj.FromRun[int] = 0) -> mj.Algorithm:
  ...
```

`fraction` is an argument with a limit. `num_clients` is annotated with `mj.FromRun`, so the run sets
its value, and a call cannot. `Literal['a', 'b']` lists valid words, and `mj.File` is a path whose content
identifies a run. The parameters `num_classes`, `num_tokens` and `rngs` of a model, and `learning_rate` of an optimizer, need
no annotation. If a function has no parameter `learning_rate` and returns, for example, `optax.sgd(0.1)`, this rate is used.
Then `--schedule` and other values of `--learning_rate` are refused, except with methods that may fine-tune with them.

`config.json` contains the call, and a hash of the file of your function. If you change that file, the command starts a new
run and never resumes the old one. Modules that the file imports are not hashed.

This table lists what a function of each kind returns, and the values of the run that it may take:

{values}

`python docs/site/flag_tables.py` generates the tables below from the code.
"""


if __name__ == '__main__':
  _PAGE = pathlib.Path(__file__).parents[1] / 'flags.md'
  _PAGE.write_text(tables(_PAGE.read_text(encoding='utf-8')), encoding='utf-8')
  _PAGE.with_name('parts.md').write_text(parts_page(), encoding='utf-8')
