"""Turns a configuration into a federation and its work directory."""

from collections.abc import Callable, Sequence
import functools
import hashlib
import sys
from typing import Any, NamedTuple

import numpy as np

from moon_jax import loggers, user_code
from moon_jax.config import Config, is_user_code
from moon_jax.data import clients as clients_lib
from moon_jax.data import cohort, sources, split
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.io import files
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.distributed import processes
from moon_jax.rundir.workdir import Workdir
from moon_jax.simulation.federation import Federation


class Prepared(NamedTuple):
  """A run before it starts."""

  config: Config  # with open settings resolved
  workdir: Workdir
  summary: dict[str, Any] | None  # of a finished run
  build: Callable[[], Federation]  # makes the federation


def once() -> Callable[..., Any]:
  """Returns a function that makes each call once, for runs that share files."""
  return functools.cache(lambda function, *args: function(*args))


def prepare(config: Config, call: Callable[..., Any] | None = None,
            root: str = 'runs') -> Prepared:
  """Finds the work directory of a run and reads the files that it names.

  Args:
    config: a configuration that `checks.validate` returned.
    call: reads files, see `once`; None does so for this run only.
    root: directory of the work directory, if the configuration names none.
  """
  from moon_jax.simulation import build  # imports JAX

  call = call or once()
  loggers.check(config)
  cohort.make(config)  # reports errors in a file
  workdir = Workdir(config, inputs_of(config, call), root)
  return Prepared(
      config, workdir, processes.run_on_first_process(workdir.check),
      lambda: build.of_valid(
          config, call(sources.load, config.dataset, config.data_dir),
          init_variables=_initial(config, call)))


def warn(configs: Sequence[Config]) -> None:
  """Prints which settings have no effect on any of some runs, and why."""
  from moon_jax.algorithms import registry  # imports JAX

  by_run = [registry.ignored(config) for config in configs]
  settings: dict[str, list[str]] = {}
  for name in by_run[0]:
    if all(name in ignored for ignored in by_run):
      reason = ' or '.join(dict.fromkeys(ignored[name] for ignored in by_run))
      values = dict.fromkeys(str(getattr(run, name)) for run in configs)
      settings.setdefault(reason, []).append(f'--{name}={",".join(values)}')
  for reason, given in settings.items():
    print(f'warning: {", ".join(given)} has no effect with {reason}',
          file=sys.stderr, flush=True)


def _initial(config, call):
  if not config.init_from:
    return None
  from moon_jax.rundir import export  # imports Orbax, which takes a second

  return call(export.load_initial, config.init_from)


def inputs_of(config: Config, call: Callable[..., Any]) -> dict[str, str]:
  """Returns hashes of the input files of a run, by the name of their flag.

  `call` reads files, see `once`.
  """
  from moon_jax.algorithms import registry  # imports JAX

  inputs = {}
  for flag in 'partition', 'cohort':
    if is_user_code(name := getattr(config, flag)):
      inputs[flag] = user_code.source(flag, name)
  for name, make in (('cohorts_file', cohort.make),
                     ('clock_file', registry.clock_of),
                     ('availability_file', registry.clock_of)):
    if path := getattr(config, name):
      make(config)  # reports errors in the file first
      inputs[name] = files.user_path(path, name).read_bytes()
  if config.has_user_algorithm():
    inputs['algorithm'] = user_code.source('algorithm', config.algorithm)
    registry.make(config)  # reports errors in the factory first
  if metrics := [name for name in config.metrics.split(',')
                 if is_user_code(name.strip())]:
    inputs['metrics'] = b''.join(
        user_code.source('metrics', name.strip()) for name in metrics)
  if config.has_user_model():
    inputs['model'] = user_code.source('model', config.model)
  hashes = {name: hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
            for name, content in inputs.items()}
  if config.partition_file:  # the bytes of equal npz files may differ
    hashes['partition_file'] = fingerprint(
        split.read_file(config.partition_file, config.num_clients))
  if config.init_from:
    from moon_jax.rundir import checkpoint

    hashes['init_from'] = checkpoint.digest(
        _initial(config, call), {})[:HASH_DIGITS]
  if sources.varies(config.dataset):
    hashes['dataset'] = call(
        _fingerprint_of, call, config.dataset, config.data_dir)
  return hashes


def _fingerprint_of(call, *source):
  return call(sources.load, *source).fingerprint()


def fingerprint(clients: Any, client_tests: ClientTests | None = None,
                validation: np.ndarray | None = None) -> str:
  """Returns hexadecimal digits that identify a partition."""
  digest = hashlib.sha256(repr(clients_lib.sizes(clients).tolist()).encode())
  digest.update(clients_lib.joined(clients).astype(np.int64).data)
  if client_tests is not None:
    digest.update(
        (client_tests.part + fingerprint(client_tests.indices)).encode())
  if validation is not None:
    digest.update(b'validation' + fingerprint([validation]).encode())
  return digest.hexdigest()[:HASH_DIGITS]
