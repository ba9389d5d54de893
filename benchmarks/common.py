"""What the benchmarks share: processes, flags, the environment and tables."""

import argparse
from collections.abc import Callable, Iterable, Iterator
import contextlib
import decimal
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import signal
import sys
from typing import Any

from moon_jax import version
from moon_jax.distributed import host

ROOT = pathlib.Path(__file__).parents[1]
_PACKAGES = 'jax', 'jaxlib', 'flax', 'optax', 'numpy', 'torch'
TIMES = 'seconds', 'examples_per_second'  # metrics that are not compared
_PATHS = 'data_dir', 'out', 'pfl_python', 'python', 'sources'  # flags


class Child:
  """A process that runs a generator, one value at a time.

  Attributes:
    ready: the first value.
  """

  def __init__(self, function: Callable[..., Iterator[Any]], *args: Any,
               limit: float | None = None):
    """Starts `function(*args)` and waits for its first value.

    Raises:
      RuntimeError: if the process fails, or takes more than `limit` seconds.
    """
    spawn = multiprocessing.get_context('spawn')
    self._pipe, theirs = spawn.Pipe()
    self._process = spawn.Process(
        target=_serve, args=(theirs, limit is not None, function, args))
    self._process.start()
    theirs.close()
    self.ready = self._receive(limit)

  def ask(self, question: Any = None, limit: float | None = None) -> Any:
    """Returns the next value; its `yield` returns the question.

    Raises:
      RuntimeError: if the process has ended, whose error is on stderr, or it
        takes more than `limit` seconds.
    """
    with contextlib.suppress(BrokenPipeError):
      self._pipe.send(question)
    return self._receive(limit)

  def _receive(self, limit):
    try:
      if self._pipe.poll(limit):
        return self._pipe.recv()
      with contextlib.suppress(ProcessLookupError):  # has no group yet
        os.killpg(self._process.pid, signal.SIGKILL)
      self._process.kill()
      error = f'not done after {limit} s'
    except EOFError:
      error = ''
    self._process.join()
    raise RuntimeError(
        error or f'ended with status {self._process.exitcode}') from None

  def close(self) -> None:
    """Ends the process."""
    self._pipe.close()
    self._process.join()


def _serve(pipe, is_leader, function, args):
  if is_leader:
    os.setsid()  # so that the processes that it starts end with it
  generator, question = function(*args), None
  with contextlib.suppress(EOFError, StopIteration):
    while True:
      pipe.send(generator.send(question))
      question = pipe.recv()


def run(function: Callable[..., Any], *args: Any,
        limit: float | None = None) -> Any:
  """Returns what a function returns in a process of its own; see `Child`."""
  child = Child(_once, function, args, limit=limit)
  child.close()
  return child.ready


def _once(function, args):
  yield function(*args)


def parser(doc: str) -> argparse.ArgumentParser:
  """Returns a parser with the flag --out."""
  made = argparse.ArgumentParser(
      description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
  made.add_argument('--out', type=pathlib.Path, required=True,
                    help='output directory')
  return made


def write(out: pathlib.Path, name: str, results: Any, text: str = '') -> None:
  """Writes NAME.json and, with a text, NAME.md; prints the text or results."""
  out.mkdir(parents=True, exist_ok=True)
  content = json.dumps(results, indent=1) + '\n'
  (out / f'{name}.json').write_text(content, encoding='utf-8')
  if text:
    (out / f'{name}.md').write_text(f'{text}\n', encoding='utf-8')
  print(f'{text or content}\nwrote {out}/{name}.*', flush=True)


def describe(benchmark: str) -> dict[str, Any]:
  """Returns what the figures of a benchmark depend on besides the code."""
  return {
      'command': command(benchmark, sys.argv[1:]),
      'versions': versions(),
      'cpu': _cpu(),
      'num_cores': host.num_cores(),
      'load_average_before': os.getloadavg()[0],
      'compilation_cache': 'off'}


def command(benchmark: str, args: Iterable[str]) -> str:
  """Returns the command of a benchmark without the paths of this machine."""
  words = [f'python -m benchmarks.{benchmark}']
  for arg in args:
    name, equals, _ = arg.removeprefix('--').partition('=')
    is_path = equals and name in _PATHS
    words.append(f'--{name}={name.upper()}' if is_path else arg)
  return ' '.join(words)


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the installed packages."""
  found = {'python': platform.python_version(),
           'moon_jax': version.__version__}
  for name in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  return found


def _cpu():
  """Returns the name, family and model of the processor, and its AVX-512."""
  cpuinfo = pathlib.Path('/proc/cpuinfo')
  facts: dict[str, str] = {}
  for line in (cpuinfo.read_text() if cpuinfo.exists() else '').splitlines():
    name, _, value = line.partition(':')
    facts.setdefault(name.strip(), value.strip())
  if 'model name' not in facts:
    return platform.processor()
  wide = 'with' if 'avx512f' in facts.get('flags', '') else 'without'
  return (f'{facts["model name"]}, family {facts.get("cpu family")}, model '
          f'{facts.get("model")}, {wide} AVX-512')


def lines_of(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the lines of a run's metrics.jsonl, without times."""
  lines = [json.loads(line) for line in
           (workdir / 'metrics.jsonl').read_text().splitlines()]
  return [{name: value for name, value in line.items() if name not in TIMES}
          for line in lines]


def bound(value: float) -> str:
  """Returns a number that is at least `value`, with one digit: 2e-04."""
  up = decimal.Context(prec=1, rounding=decimal.ROUND_CEILING)
  return f'{float(up.create_decimal(repr(value))):.0e}'


def table(columns: dict[str, Callable[[Any], Any]], rows: Iterable[Any]) -> str:
  """Returns a Markdown table; a column is a heading and the cell of a row."""
  lines = [list(columns), *([cell(row) for cell in columns.values()]
                            for row in rows)]
  first, *others = (f'| {" | ".join(map(str, line))} |' for line in lines)
  return '\n'.join([first, '|' + '---|' * len(columns), *others])
