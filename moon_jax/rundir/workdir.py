"""The work directory: configuration, partition, metrics, summary of a run."""

from collections.abc import Sequence
import contextlib
import io
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from moon_jax.config import Config
from moon_jax.data import clients as clients_lib
from moon_jax.data import cohort as cohort_lib
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.io import files
from moon_jax.errors import UserError
from moon_jax.rundir import identity
from moon_jax.rundir.metrics_file import MetricsFile

_REQUIRED_IN_SUMMARY = {'rounds', 'test_accuracy', 'best_test_accuracy',
                        'best_round', 'seconds_per_round'}

_FILES = ('config.json', 'partition.npz', 'partition.png', 'cohorts.txt',
          'metrics.jsonl', 'log.txt', 'summary.json', 'diverged.json',
          'model.safetensors', 'best.safetensors')

_DIRECTORIES = ('checkpoints', 'client_state', 'model', 'best', 'local_models')

_MANY = 2**21  # examples, from which partition.npz is not compressed


class Workdir:
  """A directory that holds one run.

  config.json     the configuration; "inputs" holds hashes of files it names
  partition.npz   `sizes` [C]; `indices` [N], concatenated over clients; for
                  held-out examples `heldout_sizes`, `heldout` and
                  `heldout_part`, "train" or "test"; `validation` [V], if there
                  are validation examples
  partition.png   the number of examples per client and class, as a heat map
  cohorts.txt     the sampled clients, one line per round; absent if every
                  round has all clients
  metrics.jsonl   one line per round
  log.txt         messages, with times
  checkpoints/    the state
  client_state/   with --client_state=disk, the state of clients in checkpoints
  model/, model.safetensors    the final global model
  best/, best.safetensors      the best global models
  local_models/   the local models of the last round
  summary.json    the results of a finished run
  diverged.json   why a run ended with a loss that is not finite
  """

  def __init__(self, config: Config, inputs: dict[str, str] | None = None,
               root: str = 'runs'):
    """Stores the arguments.

    Args:
      config: the configuration.
      inputs: for each flag that names a file, the hash of its content.
      root: directory of this one, if the configuration names none.
    """
    self._config, self._inputs = config, inputs or {}
    name = identity.directory_name(config, self._inputs)
    self.path = pathlib.Path(config.workdir or f'{root}/{name}').expanduser()
    self.checkpoints = self.path / 'checkpoints'
    self.local_models = self.path / 'local_models'
    self.metrics = MetricsFile(self.path / 'metrics.jsonl')

  def check(self) -> dict[str, Any] | None:
    """Checks that the run can begin or resume here; changes nothing.

    Returns:
      The summary, if the run is finished.

    Raises:
      UserError: if the directory holds a run of another configuration, or a
        run that is not finished could not write to it.
    """
    self._check_run()
    summary = self.summary()
    if summary is None:
      with self.writing():
        _check_writable(self.path)
    return summary

  def _check_run(self):
    """Checks that the directory holds this run, or none."""
    there = next(filter(os.path.lexists, (self.path, *self.path.parents)))
    if not there.is_dir():
      raise UserError(f'--workdir={self.path} must be a directory; {there} is '
                      'a file or a broken link. Name another directory')
    old, lines = self._read_json('config.json'), self.metrics.lines()
    if old is not None and lines:
      identity.check_same_run(self.path, old, self._config, self._inputs)
    has_checkpoints = self.checkpoints.is_dir() and any(
        self.checkpoints.iterdir())
    if old is None and (lines or has_checkpoints):
      raise UserError(
          f'--workdir={self.path} must hold a run of moon_jax or nothing, got '
          'metrics or checkpoints without config.json; name another directory')
    if has_checkpoints and not self.metrics.exists:
      raise UserError(
          f'--workdir={self.path} must hold metrics.jsonl next to its '
          'checkpoints, got none; restore it from a copy, or name another '
          '--workdir')
    every = old and old.get('checkpoint_every')
    if type(every) is int and not has_checkpoints and (
        0 < 2 * every < len(lines)):
      raise UserError(
          f'--workdir={self.path} must hold checkpoints, got none next to '
          f'metrics of {len(lines)} rounds; restore checkpoints/ from a copy, '
          'or name another --workdir')

  def lock(self) -> None:
    """Creates the directory and locks it until `close`.

    Raises:
      InUse: if another run uses it.
      UserError: if it cannot be created.
    """
    if self.metrics.is_locked:
      return
    with self.writing():
      _check_types(self.path)
      self._check_run()
      self.path.mkdir(parents=True, exist_ok=True)
      self.metrics.lock()
      self._check_run()  # another run may have started before the lock

  def close(self) -> None:
    """Releases the lock of the directory."""
    self.metrics.close()

  def begin(self, clients: Sequence[np.ndarray], cohorts: list[list[int]],
            client_tests: ClientTests | None = None,
            validation: np.ndarray | None = None) -> None:
    """Writes the configuration, the partition and the cohorts.

    Removes the results of a run with fewer rounds. See `partition_npz` for the
    arguments; `cohorts` has the sampled clients of each round.

    Raises:
      UserError: if the directory cannot be written.
    """
    with self.writing():
      inputs = {'inputs': self._inputs} if self._inputs else {}
      self._write_json('config.json', self._config.to_dict() | inputs)
      for result in ('summary.json', 'diverged.json', 'model.safetensors',
                     'best.safetensors'):
        for name in result, f'{result}.part':  # a kill may leave the second
          (self.path / name).unlink(missing_ok=True)
      for model in self.path.glob('model*'):  # with Orbax's temporary ones
        if model.name == 'model' or model.suffix.startswith('.orbax'):
          shutil.rmtree(model)
      write_atomically(self.path / 'partition.npz', partition_npz(
          clients, client_tests, validation))
      if any(len(cohort) < len(clients) for cohort in cohorts):
        write_atomically(self.path / 'cohorts.txt',
                         cohort_lib.text_of(cohorts).encode())

  def remove_local_models(self) -> None:
    """Removes the local models of a run with fewer rounds."""
    with self.writing():
      if self.local_models.exists():
        shutil.rmtree(self.local_models)

  @contextlib.contextmanager
  def writing(self):
    """A context that raises OSError of its body as UserError."""
    try:
      yield
    except OSError as error:
      raise UserError(
          f'--workdir={self.path} must be writable, got '
          f'{error.strerror or error}. Free space, change its permissions or '
          'name another directory; the same command resumes from the last '
          'checkpoint') from error

  def summary(self) -> dict[str, Any] | None:
    """Returns the summary if the run is finished, else None.

    Raises:
      UserError: if summary.json is damaged.
    """
    summary = self._read_json('summary.json')
    if summary is None:
      return None
    if not all(type(summary.get(name)) in (int, float)
               for name in _REQUIRED_IN_SUMMARY):
      raise UserError(
          f'--workdir={self.path}: summary.json must hold numbers for '
          f'{", ".join(sorted(_REQUIRED_IN_SUMMARY))}, got other content; '
          'delete it, and the same command writes it again')
    is_complete = summary['rounds'] == self._config.num_rounds or summary.get(
        'stopped_early')
    return summary if is_complete else None

  def append_metrics(self, line: dict[str, Any]) -> None:
    with self.writing():
      self.metrics.append(line)

  def mark_metrics(self) -> dict[str, Any]:
    with self.writing():
      return self.metrics.mark()

  def cut_metrics(self, mark: dict[str, Any] | None) -> None:
    with self.writing():
      self.metrics.cut(mark)

  def write_summary(self, summary: dict[str, Any]) -> None:
    with self.writing():
      self._write_json('summary.json', summary)

  def write_diverged(self, rounds_done: int, error: str) -> None:
    """Records that a loss became NaN or infinite in the next round."""
    with self.writing():
      self._write_json('diverged.json', {
          'rounds': rounds_done, 'error': error,
          'on_nan': self._config.on_nan})

  def diverged(self) -> dict[str, Any] | None:
    """Returns why the run ended early; None if the same command may continue.
    """
    found = self._read_json('diverged.json')
    is_same = found and found.get('on_nan') == self._config.on_nan
    return found if is_same else None

  def _read_json(self, name):
    try:
      return files.read_json_object(self.path / name)
    except (OSError, ValueError, RecursionError) as error:
      raise UserError(
          f'--workdir={self.path}: {name} must be a readable JSON object, got '
          f'{type(error).__name__}: {error}; delete the directory or name '
          'another') from error

  def _write_json(self, name, value):
    text = json.dumps(value, indent=1, allow_nan=False)
    write_atomically(self.path / name, (text + '\n').encode())


def write_atomically(path: pathlib.Path, content: bytes) -> None:
  """Writes a file atomically.

  A crash or a power loss leaves either the old or the complete new content.
  """
  part = path.with_name(path.name + '.part')
  with open(part, 'wb') as out:
    out.write(content)
    out.flush()
    os.fsync(out.fileno())
  os.replace(part, path)


def partition_npz(clients: Sequence[np.ndarray],
            client_tests: ClientTests | None = None,
            validation: np.ndarray | None = None) -> bytes:
  """Returns the content of partition.npz, int32 arrays; see `Workdir`.

  Args:
    clients: for each client the indices of its training examples.
    client_tests: the held-out examples of each client, if any.
    validation: the indices of the validation examples, if any.
  """
  indices = clients_lib.joined(clients).astype(np.int32)
  arrays = {'sizes': clients_lib.sizes(clients).astype(np.int32),
            'indices': indices}
  if client_tests is not None:
    arrays |= {
        'heldout_sizes': client_tests.sizes.astype(np.int32),
        'heldout': np.concatenate(client_tests.indices).astype(np.int32),
        'heldout_part': np.array(client_tests.part)}
  if validation is not None:
    arrays['validation'] = np.asarray(validation, np.int32)
  file = io.BytesIO()
  # Compressing 10 million indices takes seconds, for a third of 40 MB.
  save = np.savez_compressed if len(indices) < _MANY else np.savez
  save(file, **arrays)  # type: ignore[arg-type]
  return file.getvalue()


def _check_types(directory):
  """Checks that existing paths have the expected types, before any write."""
  files_ = {name: 'regular file' for file in _FILES
            for name in (file, f'{file}.part')}
  for name, kind in (files_ | dict.fromkeys(_DIRECTORIES, 'directory')).items():
    path = directory / name
    if os.path.lexists(path) and not (
        path.is_dir() if kind == 'directory' else path.is_file()):
      raise UserError(
          f'--workdir={directory}: {name} must be a {kind}, got something '
          'else; move it away, or name another directory')


def _check_writable(directory):
  """Raises OSError if files cannot be written, or the directory not made."""
  while not os.path.lexists(directory):
    directory = directory.parent
  with tempfile.TemporaryDirectory(dir=directory, prefix='.moon_jax-'):
    pass
