"""Runs the commands of the package in this process, in milliseconds.

A command shares the modules that are imported and the programs that are
compiled. One that hangs or allocates without bounds is ended.
"""

import contextlib
import functools
import importlib
import io
import os
import pathlib
import re
import resource
import runpy
import signal
import sys
from typing import NamedTuple
import warnings

from absl import app, flags
import pytest

from support import ROOT

_MAX_BYTES = 6 * 2**30  # of data, besides those of this process
# Units of ru_maxrss per megabyte.
_MAXRSS_PER_MEGABYTE = 2**20 if sys.platform == 'darwin' else 2**10


class Done(NamedTuple):
  """The result of a command."""

  status: int
  out: str
  err: str
  megabytes: float  # by which it raised the peak of the memory of this process


class TooLong(BaseException):
  """A command did not end in time; no command catches it."""


def run(*args: str, cwd: pathlib.Path, module: str = 'moon_jax.train',
        encoding: str = 'utf-8', seconds: float = 300.) -> Done:
  """Runs `python -m MODULE ARGS` in this directory, for some seconds at most.

  `encoding` is that of the streams that it prints to.
  """
  out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding)
              for _ in range(2))
  status, before = 0, _peak_megabytes()
  with _as_in_a_new_process(cwd, module), contextlib.redirect_stdout(out), (
      contextlib.redirect_stderr(err)), _limited(seconds):
    sys.argv = [module, *args]
    try:
      runpy.run_module(module, run_name='__main__', alter_sys=True)
    except SystemExit as end:
      status = end.code or 0
  texts = []
  for stream in out, err:
    stream.flush()
    texts.append(stream.buffer.getvalue().decode(
        encoding, errors='backslashreplace'))
  return Done(status, *texts, _peak_megabytes() - before)


def _peak_megabytes():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
      _MAXRSS_PER_MEGABYTE)


@contextlib.contextmanager
def _limited(seconds):
  """Limits time and memory."""
  def end(*_):
    raise TooLong(f'the command did not end in {seconds} s')

  usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
      2**20 // _MAXRSS_PER_MEGABYTE)
  before = resource.getrlimit(resource.RLIMIT_DATA)
  handler = signal.signal(signal.SIGALRM, end)
  resource.setrlimit(resource.RLIMIT_DATA, (usage + _MAX_BYTES, before[1]))
  signal.setitimer(signal.ITIMER_REAL, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_DATA, before)


@contextlib.contextmanager
def _as_in_a_new_process(cwd, module):
  """Undoes in this process what a command changes of it.

  Modules that define flags, and the module that runs, are imported again.
  """
  app.define_help_flags()  # once per process, not removed below
  kept = {name: {key: [*x] if isinstance(x, list) else x
                 for key, x in value.items()} if isinstance(value, dict)
          else value for name, value in vars(flags.FLAGS).items()}
  defining = {name for name in flags.FLAGS.flags_by_module_dict()
              if name.startswith('moon_jax')}
  modules = {*sys.modules}
  environment, path = dict(os.environ), [*sys.path]
  with pytest.MonkeyPatch.context() as changed:
    for name in [*flags.FLAGS]:
      if flags.FLAGS.find_module_defining_flag(name) in defining:
        delattr(flags.FLAGS, name)
    runs = {module if '.' in module else '', f'{module}.__main__'}
    for name in (defining | runs) & modules:
      package, _, leaf = name.rpartition('.')
      changed.delattr(sys.modules[package], leaf, raising=False)
      changed.delitem(sys.modules, name)
    changed.chdir(cwd)
    changed.syspath_prepend(str(cwd))
    changed.setattr(sys, 'argv', [])
    changed.setattr(os, '_exit', sys.exit)
    for step in app._run_init, app._register_and_parse_flags_with_usage:
      changed.setattr(step, 'done', False)  # else flags are not parsed again
    changed.setattr(warnings, 'formatwarning', warnings.formatwarning)
    importlib.invalidate_caches()
    try:
      yield
    finally:
      flags.FLAGS.unparse_flags()  # those of absl, which are shared
      vars(flags.FLAGS).clear()
      vars(flags.FLAGS).update(kept)
      own = [name for name in {*sys.modules} - modules
             if not name.startswith('moon_jax') and str(getattr(
                 sys.modules[name], '__file__', '')).startswith(str(cwd))]
      for name in own:
        del sys.modules[name]
      if own:
        _forget()
      for name in {*sys.modules} - modules:
        if name in _flag_modules():
          package, _, leaf = name.rpartition('.')
          vars(sys.modules[package]).pop(leaf, None)
          del sys.modules[name]
      os.environ.clear()
      os.environ.update(environment)
  sys.path[:] = path


@functools.cache
def _flag_modules():
  """Returns the names of the modules of the package that define flags."""
  return {
      '.'.join(path.relative_to(ROOT).with_suffix('').parts)
      for path in (ROOT / 'moon_jax').rglob('*.py')
      if re.search(r'flags\.DEFINE_\w+\(', path.read_text(encoding='utf-8'))}


def _forget():
  """Clears what the package remembers of functions by their names."""
  for name, module in [*sys.modules.items()]:
    if name.startswith('moon_jax.'):
      for value in [*vars(module).values()]:
        if hasattr(value, 'cache_clear'):
          value.cache_clear()
