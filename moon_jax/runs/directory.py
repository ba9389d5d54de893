"""The work directory: configuration, partition, metrics, summary of a run."""

from collections.abc import Iterable, Sequence
import contextlib
import fnmatch
import hashlib
import io
import json
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any, BinaryIO, TYPE_CHECKING

import numpy as np

from moon_jax.config import Config
from moon_jax.data import clients as clients_lib
from moon_jax.data import cohort as cohort_lib
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.clock import Timeline
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.errors import require, setting, UserError
from moon_jax.runs import identity

if TYPE_CHECKING:  # it imports JAX, which readers of results do without
  from moon_jax.simulation.federation import Federation

_RESULTS = ('summary.json', 'diverged.json', 'model.safetensors',
            'best.safetensors')
_FILES = ('config.json', 'partition.npz', 'timeline.npz', 'cohorts.txt',
          'metrics.jsonl', 'log.txt', *_RESULTS)
_DIRECTORIES = 'checkpoints', 'client_state', 'best', 'local_models'
_IN_SUMMARY = ('rounds', 'test_accuracy', 'best_test_accuracy', 'best_round',
               'seconds_per_round')  # loss for accuracy if the task has none
_MANY = 2**21  # examples, from which partition.npz is not compressed
# Of a file that cannot be read: the one that loses least.
_REMEDIES = {
    'config.json': 'Restore it from a copy, or name another directory',
    'summary.json': 'Delete this file, and the same command writes it again',
    'diverged.json': 'Delete this file, and the same command resumes from the '
                     'last checkpoint'}
# Windows also locks the content of a file, so there the lock is another file.
LOCK = 'metrics.jsonl' if os.name == 'posix' else 'lock'
_RETRIES, _PAUSE = 10, .02  # of a lock that others hold; seconds


class InUse(UserError):
  """Another run uses the work directory."""


class Workdir:
  """A directory that holds one run; docs/workdir.md lists its files.

  The only active run holds a lock, on POSIX systems on metrics.jsonl.

  A checkpoint stores the result of `mark_metrics`, which identifies the lines
  written before it. A run that resumes from the checkpoint verifies that these
  lines are unchanged, and removes later ones, since it repeats their rounds.

  Attributes:
    contents: equal for directories of the same run only: `identity.contents`,
      and the hashes of input files.
    has_locks: False once the file system has turned out to have no locks.
  """

  def __init__(self, config: Config, inputs: dict[str, str] | None = None,
               root: str = 'runs'):
    """Stores the arguments.

    `inputs` has the hash of the file that a flag names, and `root` is the
    directory of this one if the configuration names none.
    """
    self._config, self._inputs = config, inputs or {}
    self.contents = identity.contents(config), self._inputs
    name = identity.directory_name(config, self._inputs)
    self.path = files.user_path(config.workdir or f'{root}/{name}', 'workdir')
    self.checkpoints = self.path / 'checkpoints'
    self._metrics = self.path / 'metrics.jsonl'
    self._lock: BinaryIO | None = None
    self._is_replaced, self.has_locks = False, True

  def check(self) -> dict[str, Any] | None:
    """Checks that the run can begin or resume here; changes nothing.

    Returns the summary, if the run is finished.
    """
    there = self._check_run()
    summary = self.summary()
    if summary is None:
      is_finished = (self.path / 'summary.json').exists()
      require(self._has_checkpoints() or not is_finished,
              f'workdir={self.path}', 'must hold a checkpoint, from which '
              f'{setting("num_rounds", self._config.num_rounds)} extends the '
              'finished run', f'no checkpoint, and {len(self.lines())} rounds',
              f'Name another {setting("workdir")}, or restore checkpoints/')
      if self._config.checkpoint_every:
        _check_name(self.path)
      with self.writing(), tempfile.TemporaryDirectory(
          dir=there, prefix='.moon_jax-'):
        pass
    return summary

  def _check_run(self):
    """Checks that the directory holds this run, or none.

    Returns the nearest directory that exists.
    """
    there = next(filter(os.path.lexists, (self.path, *self.path.parents)))
    where = f'workdir={self.path}'
    require(there.is_dir(), where, 'must be a directory',
            f'{there}, which is a file or a broken link',
            'Name another directory')
    _check_types(self.path)
    old, lines = self._read_json('config.json'), self.lines()
    has_summary = (self.path / 'summary.json').exists()
    has_checkpoints = self._has_checkpoints()
    if old is not None and (lines or has_summary or has_checkpoints):
      identity.check_same_run(self.path, old, self._config, self._inputs)
    require(old is not None or not any(self.path.glob('*/config.json')), where,
            'must not hold other runs, which moon-jax show would not find then',
            'some', 'Name a new directory in it')
    require(old is not None or not (lines or has_checkpoints), where,
            'must hold a run of moon_jax or nothing',
            'metrics or checkpoints without config.json',
            'Name another directory')
    other = f'from a copy, or name another {setting("workdir")}'
    require(not has_checkpoints or os.path.lexists(self._metrics), where,
            'must hold metrics.jsonl next to its checkpoints', 'none',
            f'Restore it {other}')
    every = old and old.get('checkpoint_every')
    require(has_checkpoints or type(every) is not int
            or not 0 < 2 * every < len(lines) or self.summary(),
            where, 'must hold checkpoints',
            f'none next to metrics of {len(lines)} rounds',
            f'Restore checkpoints/ {other}')
    return there

  def _has_checkpoints(self):
    return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

  def lock(self) -> None:
    """Creates the directory and locks it until `close`.

    `moon-jax show` holds the lock for an instant to see whether it is free,
    so a lock that another process holds is tried for 0.2 seconds.
    """
    if self._lock is not None:
      return
    with self.writing():
      self.path.mkdir(parents=True, exist_ok=True)
      self._metrics.open('ab').close()
      self._lock = open(self.path / LOCK, 'ab')
    for remaining in reversed(range(_RETRIES)):
      try:
        if try_lock(self._lock):
          break
      except OSError:
        self.has_locks = False  # the file system has none
        break
      if not remaining:
        self.close()
        raise InUse(
            f'workdir={self.path}', 'is in use by another run', '',
            'Wait until it ends, or name another directory')
      time.sleep(_PAUSE)
    with self.writing():
      self._check_run()  # another run may have started before the lock

  def close(self) -> None:
    """Releases the lock of the directory."""
    if self._lock is not None:
      self._lock.close()
      self._lock = None

  def begin(self, federation: 'Federation',
            mark: dict[str, Any] | None = None) -> None:
    """Writes the configuration, the partition and what is planned of cohorts.

    The configuration and the results of a finished run that is extended stay
    until `replace_results`. Changes nothing if the lines of the mark are
    missing or differ; `cut_metrics` removes later ones.
    """
    cohorts = federation.rounds.cohorts or []
    timeline = federation.rounds.timeline
    with self.writing():
      if mark:
        self._check_mark(mark, cohorts)
      self._is_replaced = False
      if not (mark and (self.path / 'summary.json').exists()):
        self.replace_results()
    self.write('partition.npz', partition_npz(
        federation.clients, federation.client_tests, federation.validation,
        federation.new_clients, federation.data))
    if timeline is not None and timeline.spans:
      self.write('timeline.npz', timeline_npz(timeline))
    if any(len(cohort) < len(federation.clients) for cohort in cohorts):
      self.write('cohorts.txt', cohort_lib.text_of(cohorts).encode())
    else:  # of another run that was killed before its first round
      with self.writing():
        (self.path / 'cohorts.txt').unlink(missing_ok=True)

  def replace_results(self) -> None:
    """Writes the configuration, and removes the results of another one, once.

    Call it before the directory gets a line or a result.
    """
    if self._is_replaced:
      return
    inputs = {'inputs': self._inputs} if self._inputs else {}
    with self.writing():
      self._write_json('config.json', self._config.to_dict() | inputs)
      for result in _RESULTS:
        for name in result, f'{result}.part':  # a kill may leave the second
          (self.path / name).unlink(missing_ok=True)
    self._is_replaced = True

  def cut_metrics(self, mark: dict[str, Any] | None) -> None:
    """Removes the lines after a mark.

    Call it after damaged checkpoints have been renamed: if a newer one turned
    out to be intact, it would need its lines.
    """
    self._bytes = mark['bytes'] if mark else 0
    with self.writing():
      os.truncate(self._metrics, self._bytes)
      self._written = hashlib.sha256(files.read_regular(self._metrics))

  def _check_mark(self, mark, cohorts):
    """Checks that the lines of a mark are there, and are of these clients."""
    content = files.read_regular(self._metrics)[:mark['bytes']]
    require(hashlib.sha256(content).hexdigest() == mark['sha256'],
            f'workdir={self.path}', 'must have a metrics.jsonl that begins '
            'with the lines that the run had written when it saved its '
            'checkpoint', 'other content', 'Restore it from a copy, or name '
            f'another {setting("workdir")}')
    path, done = self.path / 'cohorts.txt', content.count(b'\n')
    require(not path.exists() or files.read_regular(path).splitlines()[:done]
            == cohort_lib.text_of(cohorts[:done]).encode().splitlines(),
            f'workdir={self.path}', 'must have the clients that this version '
            'takes', f'other clients in its first {done} rounds (cohorts.txt)',
            'To train again with the clients of that file, name another '
            f'{setting("workdir")} and give '
            f'{setting("cohort", f"file(path={path})")} instead of '
            f'{setting("participation")}')

  def remove_local_models(self) -> None:
    """Removes the local models of a run with fewer rounds."""
    models = self.path / 'local_models'
    with self.writing():
      if models.exists():
        shutil.rmtree(models)

  @contextlib.contextmanager
  def writing(self):
    """A context that raises OSError of its body as UserError."""
    try:
      yield
    except OSError as error:
      raise UserError(
          f'workdir={self.path}', 'must be writable', error.strerror or error,
          'Free space, change its permissions or name another directory; the '
          'same command resumes from the last checkpoint') from error

  def lines(self) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl; see `read_lines`."""
    return read_lines(self.path)

  def append_metrics(self, line: dict[str, Any]) -> None:
    """Appends a line to a file that exists."""
    text = (json.dumps(line, allow_nan=False) + '\n').encode()
    # 'ab' would create a deleted file.
    with self.writing(), open(self._metrics, 'rb+') as out:
      out.seek(0, os.SEEK_END)
      out.write(text)
    self._written.update(text)
    self._bytes += len(text)

  def mark_metrics(self) -> dict[str, Any]:
    """Flushes the metrics to disk and returns their length and hash."""
    with self.writing(), open(self._metrics, 'rb') as written:
      os.fsync(written.fileno())
    return {'bytes': self._bytes, 'sha256': self._written.hexdigest()}

  def summary(self) -> dict[str, Any] | None:
    """Returns the summary if the run is finished, else None."""
    summary = self._read_json('summary.json')
    if summary is None:
      return None
    measure = 'loss' if 'best_test_loss' in summary else 'accuracy'
    require(all(type(summary.get(name.replace('accuracy', measure))) in (
        int, float) for name in _IN_SUMMARY), f'workdir={self.path}',
            'must have a summary.json that holds numbers for '
            f'{", ".join(_IN_SUMMARY)}', 'other content',
            _REMEDIES['summary.json'])
    is_complete = summary['rounds'] == self._config.num_rounds or summary.get(
        'stopped_early')
    return summary if is_complete else None

  def write(self, name: str, content: bytes) -> None:
    """Writes a file, named by its path in the directory, atomically."""
    path = self.path / name
    with self.writing():
      if path.parent != self.path:  # which stays away if it was deleted
        path.parent.mkdir(exist_ok=True)
      write_atomically(path, content)

  def write_summary(self, summary: dict[str, Any]) -> None:
    self._write_json('summary.json', summary)

  def write_diverged(self, rounds_done: int, error: str) -> None:
    """Records that a loss became NaN or infinite in the next round."""
    self._write_json('diverged.json', {
        'rounds': rounds_done, 'error': error, 'on_nan': self._config.on_nan})

  def diverged(self) -> dict[str, Any] | None:
    """Returns why the run ended, unless the same command may continue."""
    note = self._read_json('diverged.json')
    is_same = note and note.get('on_nan') == self._config.on_nan
    return note if is_same else None

  def _read_json(self, name):
    try:
      return files.read_json_object(self.path / name)
    except (OSError, ValueError, RecursionError) as error:
      raise UserError(
          f'workdir={self.path}', f'must have a {name} that is a readable JSON '
          'object', f'{type(error).__name__}: {error}', _REMEDIES[name]
          ) from error

  def _write_json(self, name, value):
    text = json.dumps(value, indent=1, allow_nan=False)
    self.write(name, (text + '\n').encode())


def try_lock(file: BinaryIO, is_shared: bool = False) -> bool:
  """Locks an open file; returns False if another process has locked it.

  Closing the file releases the lock, and so does the end of the process, also
  by `kill -9`. Windows has no shared locks without further packages.

  Raises:
    OSError: if the file system has no locks.
  """
  import portalocker  # 0.1 seconds

  kind = (portalocker.LockFlags.SHARED if is_shared and os.name == 'posix'
          else portalocker.LockFlags.EXCLUSIVE)
  try:
    portalocker.lock(file, kind | portalocker.LockFlags.NON_BLOCKING)
  except portalocker.exceptions.AlreadyLocked:
    return False
  except portalocker.exceptions.LockException as error:
    raise OSError(str(error)) from error
  return True


def read_lines(directory: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the metrics of rounds 1, 2, ..., without an incomplete last line.
  """
  path = directory / 'metrics.jsonl'
  if not os.path.lexists(path):
    return []
  try:
    text = files.read_regular(path).decode('utf-8')
    # A line that a crash interrupted has no line break.
    complete = text[:text.rfind('\n') + 1]
    lines = [json.loads(line) for line in complete.splitlines()]
    for number, line in enumerate(lines, 1):
      if line['round'] is True or line['round'] != number:
        raise ValueError(f'line {number} has round {line["round"]}')
    return lines
  except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
    raise UserError(
        f'workdir={directory}', 'must have a metrics.jsonl that holds one line '
        'per round', repr(error), 'Restore it from a copy, or name another '
        'directory') from error


def saved_rounds(checkpoints: pathlib.Path, unfinished: bool = False
                 ) -> list[int]:
  """Returns the rounds of the checkpoints in a directory, if it exists.

  Also of those that are being written, in temporary directories, if
  `unfinished`.
  """
  names = [path.name for path in checkpoints.glob('*')]
  return [int(name) for name in (
      (name.partition('.')[0] for name in names) if unfinished else names)
          if name.isdecimal()]


def write_atomically(path: pathlib.Path, content: bytes | Iterable[bytes]
                     ) -> None:
  """Writes a file atomically; `content` may be its pieces.

  A crash or a power loss leaves either the old or the complete new content.
  """
  part = path.with_name(path.name + '.part')
  with open(part, 'wb') as out:
    out.writelines([content] if isinstance(content, bytes) else content)
    out.flush()
    os.fsync(out.fileno())
  os.replace(part, path)


def partition_npz(clients: Sequence[np.ndarray],
                  client_tests: ClientTests | None = None,
                  validation: np.ndarray | None = None,
                  new_clients: Sequence[np.ndarray] = (),
                  data: Dataset | None = None) -> bytes:
  """Returns the content of partition.npz, int32 arrays.

  `sizes` [C]; `indices` [N], concatenated over clients; for held-out examples
  `heldout_sizes`, `heldout` and `heldout_part`, "train" or "test"; `validation`
  [V], if there are validation examples; `names` [C], if clients have them;
  `new_sizes` and `new_indices` of those that never take part; with `data`, of
  the clients, `counts` [C, K] of each of the `class_names` [K].
  """
  arrays = {'sizes': clients_lib.sizes(clients).astype(np.int32),
            'indices': clients_lib.joined(clients).astype(np.int32)}
  if names := clients_lib.names(clients):
    arrays['names'] = np.array(names)
  if client_tests is not None:
    arrays |= {
        'heldout_sizes': client_tests.sizes.astype(np.int32),
        'heldout': np.concatenate(client_tests.indices).astype(np.int32),
        'heldout_part': np.array(client_tests.part)}
  if len(new_clients):
    arrays |= {'new_sizes': clients_lib.sizes(new_clients).astype(np.int32),
               'new_indices': clients_lib.joined(new_clients).astype(np.int32)}
  if validation is not None:
    arrays['validation'] = np.asarray(validation, np.int32)
  if data is not None:
    counts_CK = clients_lib.class_counts(
        data.train_labels, clients, data.num_classes)
    arrays |= {'counts': counts_CK.astype(np.int32),
               'class_names': np.array(data.class_names, str)}
  file = io.BytesIO()
  # Compressing 10 million indices takes seconds, for a third of 40 MB.
  save = np.savez_compressed if arrays['indices'].size < _MANY else np.savez
  save(file, **arrays)  # type: ignore[arg-type]
  return file.getvalue()


def timeline_npz(timeline: Timeline) -> bytes:
  """Returns the content of timeline.npz: T rounds with U updates that count.

  `seconds` [T]; `round` [U], from 0, `client`, `begin` and `end`, in seconds,
  and, if they differ, `staleness`.
  """
  lengths = [*map(len, timeline.cohorts)]
  begin, end = np.concatenate([*map(np.array, timeline.spans)]).T
  arrays = {'seconds': np.array(timeline.seconds), 'begin': begin, 'end': end,
            'round': np.repeat(np.arange(len(lengths)), lengths),
            'client': np.concatenate(timeline.cohorts)}
  if timeline.staleness:
    arrays['staleness'] = np.concatenate(timeline.staleness)
  file = io.BytesIO()
  np.savez_compressed(file, **arrays)
  return file.getvalue()


def _check_name(directory):
  """Checks that Orbax can save checkpoints in a directory.

  It finds its own files by `glob`, and escapes no path: of [b] it would find b,
  nothing else, and call a checkpoint without arrays complete.
  """
  path = directory.absolute()
  require('**' not in str(path) and all(
      fnmatch.fnmatchcase(part, part) for part in path.parts),
          f'workdir={directory}', 'must have a path without ** and without '
          'characters in brackets, such as [b], for Orbax to write checkpoints',
          path, 'Name another directory, or use '
          f'{setting("checkpoint_every")}=0')


def _check_types(directory):
  """Checks that existing paths have the expected types, before any write."""
  for names, kind, is_kind in (
      ([*_FILES, *(f'{name}.part' for name in _FILES)], 'regular file',
       os.path.isfile), (_DIRECTORIES, 'directory', os.path.isdir)):
    for path in (directory / name for name in names):
      require(not os.path.lexists(path) or is_kind(path),
              f'workdir={directory}', f'must have a {kind} as {path.name}',
              'something else', 'Move it away, or name another directory')
