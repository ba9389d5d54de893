"""Turns a configuration into a federation and its work directory."""

from collections.abc import Callable, Iterator
import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np

from moon_jax import loggers, user_code
from moon_jax.config import Config, is_user_code, Part, PARTS
from moon_jax.data import clients as clients_lib
from moon_jax.data import cohort, sources, split
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.io import files
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.distributed import processes
from moon_jax.errors import require
from moon_jax.runs.directory import Workdir
from moon_jax.simulation.federation import Federation


class Prepared(NamedTuple):
  """A run before it starts."""

  config: Config  # with open settings resolved
  workdir: Workdir
  summary: dict[str, Any] | None  # of a finished run
  build: Callable[[], Federation]  # makes the federation
  name: str = ''  # begins messages about one of several runs


def once() -> Callable[..., Any]:
  """Returns a function that makes each call once, for runs that share files."""
  return functools.cache(lambda function, *args: function(*args))


def prepare(config: Config, call: Callable[..., Any] | None = None,
            root: str = 'runs', name: str = '') -> Prepared:
  """Finds the work directory of a run and reads the files that it names.

  Args:
    config: a configuration that `checks.validate` returned.
    call: reads files, see `once`; None does so for this run only.
    root: directory of the work directory, if the configuration names none.
    name: of the run in messages; '' if it is the only one.
  """
  from moon_jax.simulation import build  # imports JAX

  call = call or once()
  loggers.check(config)
  workdir = Workdir(config, inputs_of(config, call), root)
  return Prepared(
      config, workdir, processes.run_on_first_process(workdir.check),
      lambda: build.from_valid(
          config, call(sources.load_dataset, config.dataset, config.data_dir),
          init_variables=_initial(config, call)), name)


def _initial(config, call):
  if not config.init_from:
    return None

  from moon_jax.runs import saved_models  # imports Orbax, a second

  return call(saved_models.load_initial, config.init_from)


def inputs_of(config: Config, call: Callable[..., Any]) -> dict[str, str]:
  """Returns hashes of the input files of a run, by the name of their flag.

  `call` reads files, see `once`.
  """
  from moon_jax.methods import registry  # imports JAX

  inputs = {}
  for kind in PARTS:
    for name, part in _calls(kind, getattr(config, kind)):
      if part.is_own:
        inputs[name] = user_code.source(name, part.name)
  if config.algorithm.is_own:
    registry.make(config)  # reports errors in the factory first
  readers = {'cohort': cohort.make, 'clock': registry.clock_of,
             'topology': registry.topology_of}
  for name, path in config.files().items():
    kind = name.partition('.')[0]
    if kind == 'dataset':  # below, by the data that are made with it
      continue
    if kind in readers:
      readers[kind](config)  # reports errors in the file first
    place = files.user_path(path, name)
    if kind == 'model' and (place.is_dir() or not config.model.is_own):
      from moon_jax.models import weight_files

      inputs[name] = b''.join(
          file.read_bytes() for file in weight_files.files_of(path))
    elif kind != 'partition' or config.partition.is_own:
      require(place.is_file(), name, 'must name a file', path, 'Correct it')
      inputs[name] = place.read_bytes()
  if metrics := [name for name in config.metrics.split(',')
                 if is_user_code(name.strip())]:
    inputs['metrics'] = b''.join(
        user_code.source('metrics', name.strip()) for name in metrics)
  hashes = {name: hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
            for name, content in inputs.items()}
  if config.partition.name == 'file':
    path = config.args('partition')['path']
    hashes['partition.path'] = fingerprint(  # bytes of equal files may differ
        split.read_file(path, config.num_clients))
  if config.init_from:
    from moon_jax.runs import checkpoint

    hashes['init_from'] = checkpoint.digest(
        _initial(config, call), {})[:HASH_DIGITS]
  if sources.varies(config.dataset):
    hashes['dataset'] = call(
        _fingerprint_of, call, config.dataset, config.data_dir)
  return hashes


def _calls(name: str, part: Part) -> Iterator[tuple[str, Part]]:
  """Yields a part and those among its arguments, with their names."""
  yield name, part
  for argument, value in part.arguments:
    if isinstance(value, Part):
      yield from _calls(f'{name}.{argument}', value)


def _fingerprint_of(call, *source):
  return call(sources.load_dataset, *source).fingerprint()


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
