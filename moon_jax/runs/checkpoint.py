"""Saves and restores the complete state of a run with Orbax, asynchronously.

A checkpoint is a directory. Orbax gives it its final name once it is complete,
and a hash of its content detects later damage. In a run of several processes
all of them take part, and all must see the same directory.

With --client_state=disk a checkpoint does not hold the state of clients. A file
next to the checkpoints, client_state/ROUND.rows, holds the rows of the clients
that have trained; all others have their initial state. The checkpoint holds the
hash of the file. It has one line of JSON that describes it, then `int64 [n]`
with run * C + client of each row in ascending order, then the n rows. A row is
the client's arrays, one after another.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import pathlib
import sys
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from moon_jax.config import Config
from moon_jax.distributed import devices, processes
from moon_jax.engine import client_store
from moon_jax.engine.disk_store import DiskClients
from moon_jax.engine.state import State
from moon_jax.errors import first_line, setting, UserError
from moon_jax.runs.directory import saved_rounds, write_atomically

_CHUNK_BYTES = 2**26  # of rows that are read at once
_OTHER_RUN = ('it is from another network, algorithm, number of clients or '
              'version of moon_jax')


class Checkpoints:
  """The checkpoints of one run.

  Each is a directory whose name is the number of completed rounds.

  Attributes:
    newest: rounds completed at the newest checkpoint; 0 if there is none.
  """

  def __init__(self, directory: pathlib.Path, config: Config):
    """Reads the names in the directory, if it exists, and changes nothing."""
    if len(set(map(len, devices.by_process()))) > 1:
      raise UserError(
          '', 'all processes must have the same number of devices for Orbax to '
          'write checkpoints', 'different numbers', 'Give each process the '
          f'same number, or use {setting("checkpoint_every")}=0 with a new '
          f'{setting("workdir")}')
    _silence_orbax()
    self._directory, self._config = directory.absolute(), config
    self._rows = self._directory.with_name('client_state')
    self._damaged: list[int] = []
    self._writer: Any = None
    self.newest = max(saved_rounds(self._directory), default=0)

  def restore(self, like: State) -> tuple[State, dict[str, Any]] | None:
    """Returns the newest undamaged state and its note, and changes no file.

    Args:
      like: the state before the first round on the host; gives the shapes and
        types of the result. Client state on disk is read into `like.clients`,
        and so are such rows into client state in memory.

    Returns:
      The state on the host and the note given to `save`, or None if there is
      no checkpoint.

    Raises:
      UserError: if all checkpoints are damaged, or one cannot be read.
    """
    reasons = {}  # step -> why its checkpoint is damaged
    level = logging.root.manager.disable  # that of the program
    for step in sorted(saved_rounds(self._directory), reverse=True):
      try:
        logging.disable()  # Orbax raises the errors that it logs
        restored, reason = self._load(step, like), ''
      except (MemoryError, PermissionError) as error:  # it is not damaged
        raise UserError(
            'workdir', 'must have readable checkpoints',
            f'{first_line(error)} for {self._directory / str(step)}',
            'Change its permissions or free memory') from error
      except Exception as error:  # Orbax and TensorStore raise many kinds
        if processes.is_lost_peer_error(error):
          raise
        restored, reason = None, first_line(error)
      finally:
        logging.disable(level)
      if processes.all_agree(restored is not None):
        self._damaged, self.newest = list(reasons), step
        if reasons and processes.is_first():
          print(f'{setting("workdir")}: {self._describe(reasons)}; the run '
                f'resumes after round {step}', file=sys.stderr, flush=True)
        return restored
      reasons[step] = reason or 'another process cannot read it'
    if not reasons:
      return None
    raise UserError(
        'workdir', 'must have a checkpoint that is not damaged',
        f'{self._describe(reasons)}, and there is no other checkpoint',
        f'Restore one from a copy, or start in another {setting("workdir")}')

  def open(self) -> None:
    """Prepares the directory for `save`.

    Renames the checkpoints that `restore` found damaged, so that they are not
    read again.
    """
    processes.run_on_first_process(self._rename_damaged)
    with self._writing():
      self._writer = ocp.training.Checkpointer(
          self._directory, cleanup_tmp_directories=True,
          preservation_policy=(
              ocp.training.preservation_policies.LatestN(
                  self._config.checkpoint_keep)))

  def _rename_damaged(self):
    with self._writing():
      for step in self._damaged:
        number = len(list(self._directory.glob(f'damaged-{step}-*')))
        (self._directory / str(step)).rename(
            self._directory / f'damaged-{step}-{number}')

  def save(self, state: State, note: dict[str, Any]) -> None:
    """Starts to write a checkpoint, after the previous one is complete.

    Args:
      state: on the host (`state.on_host`), the same in all processes. It may
        be modified as soon as this function returns.
      note: further values to restore, serializable as JSON.

    Raises:
      UserError: if this or the previous checkpoint cannot be written.
    """
    tree, step = _to_tree(state), int(state.round[0])
    metadata = {'note': note, 'sha256': digest(tree, note),
                'variables_sha256': digest(tree['variables'], {})}
    self._clean({self.newest, step})
    with self._writing():
      if isinstance(state.clients, DiskClients):
        metadata['client_rows'] = _save_rows(
            self._rows / f'{step}.rows', state.clients)
      self._writer.save_async(step, tree, force=True, custom_metadata=metadata)
    self.newest = step

  def close(self) -> None:
    """Waits until all checkpoints are written, and closes Orbax's writer."""
    if self._writer:
      writer, self._writer = self._writer, None
      with self._writing():
        writer.close()
      self._clean(set())

  def _load(self, step, like):
    path = self._directory / str(step)
    metadata = ocp.metadata(path).custom_metadata
    clients, on_disk = like.clients, isinstance(like.clients, DiskClients)
    rows_digest = metadata.get('client_rows')
    if rows_digest is not None:
      clients = ()
    elif on_disk:
      clients = client_store.filled(clients.initial, clients.shape[1])
    template = _to_tree(like._replace(clients=clients))
    tree = ocp.load(path, template)
    if metadata['sha256'] != digest(tree, metadata['note']):
      raise ValueError('its hash differs from that of the saved state')
    kinds = lambda tree: jax.tree.map(
        lambda x: (np.shape(x), np.asarray(x).dtype), tree)
    if kinds(tree) != kinds(template):
      raise ValueError(_OTHER_RUN)
    if rows_digest is not None:
      _load_rows(self._rows / f'{step}.rows', rows_digest, like.clients)
    elif on_disk:
      _move(tree.pop('clients'), like.clients)
    return like._replace(**tree), metadata['note']

  def _clean(self, steps):
    """Removes the rows of deleted checkpoints, but not those of `steps`."""
    if processes.is_first():
      with self._writing():
        kept = {*map(str, (*saved_rounds(self._directory), *steps))}
        for path in self._rows.glob('*.rows*'):
          if path.suffix == '.part' or path.stem not in kept:
            path.unlink(missing_ok=True)

  def _describe(self, reasons):
    checkpoints = ', '.join(f'{self._directory / str(step)} ({reason})'
                            for step, reason in reasons.items())
    return f'damaged checkpoint {checkpoints}'

  @contextlib.contextmanager
  def _writing(self):
    """A context that raises errors of its body as UserError."""
    try:
      yield
    except Exception as error:  # Orbax and TensorStore raise many kinds
      if processes.is_lost_peer_error(error):  # processes synchronize to write
        raise
      raise UserError(
          'workdir', 'must be writable for checkpoints',
          f'{first_line(error)} for {self._directory}', 'Free space or change '
          'its permissions: the same command resumes from the last complete '
          'checkpoint') from error


def _save_rows(path, clients):
  """Writes the rows of all clients that have trained; returns their hash.

  The file is complete on disk when this function returns. It has the size of
  the rows, and memory holds a few of them at a time.
  """
  path.parent.mkdir(exist_ok=True)
  hashed, row_type = hashlib.sha256(), _row_type(clients.initial)
  run, client = clients.written()
  index = (run * clients.shape[1] + client).astype(np.int64).tobytes()

  def pieces():
    for content in itertools.chain(
        [_header(clients.initial, clients.shape, len(run)), index], (
            np.rec.fromarrays(jax.tree.leaves(rows), row_type).tobytes()
            for _, _, rows in clients.rows())):
      hashed.update(content)
      yield content

  write_atomically(path, pieces())
  return hashed.hexdigest()


def _load_rows(path, expected, into):
  """Reads a file of rows with a hash into the state before the first round.

  Client state, in memory or on disk, changes only if the file is undamaged.
  """
  if isinstance(into, DiskClients):
    initial, shape = into.initial, into.shape
  else:
    initial = jax.tree.map(lambda x_RC: x_RC[:, 0], into)
    shape = jax.tree.leaves(into)[0].shape[:2]
  with open(path, 'rb') as file:
    if hashlib.file_digest(file, 'sha256').hexdigest() != expected:
      raise ValueError(f'the hash of {path} differs')
    file.seek(0)
    num_rows = json.loads(line := file.readline())['rows']
    if line != _header(initial, shape, num_rows):
      raise ValueError(_OTHER_RUN)
    index = np.fromfile(file, np.int64, num_rows)
    if isinstance(into, DiskClients):
      into.clear()
    row_type, tree = _row_type(initial), jax.tree.structure(initial)
    count = max(1, _CHUNK_BYTES // row_type.itemsize)
    for i in range(0, num_rows, count):
      at = index[i:i + count]
      rows_J = np.fromfile(file, row_type, len(at))
      client_store.write(into, *np.divmod(at, shape[1]), jax.tree.unflatten(
          tree, [rows_J[name] for name in row_type.names]))


def _move(clients, into):
  """Writes client state [R, C, ...] in memory to disk, except initial rows."""
  into.clear()
  count = max(1, _CHUNK_BYTES // into.row_bytes)
  for run, start in itertools.product(
      range(into.shape[0]), range(0, into.shape[1], count)):
    rows = jax.tree.map(lambda x_RC: x_RC[run, start:start + count], clients)
    changed = np.any([
        (x_J != x_R[run]).reshape(len(x_J), -1).any(1) for x_J, x_R in zip(
            jax.tree.leaves(rows), jax.tree.leaves(into.initial), strict=True)
        ], axis=0)
    client = np.flatnonzero(changed)
    into.write(np.full(len(client), run), start + client,
               jax.tree.map(lambda x_J: x_J[client], rows))


def _header(initial, shape, num_rows):
  arrays = [[jax.tree_util.keystr(path), x.dtype.str, x.shape[1:]]
            for path, x in jax.tree.leaves_with_path(initial)]
  return json.dumps({'rows': num_rows, 'runs': shape[0], 'clients': shape[1],
                     'arrays': arrays}).encode() + b'\n'


def _row_type(initial):
  """Returns the type of a row, the arrays of `initial` [R, ...] for one run."""
  return np.dtype([(f'{i}', x_R.dtype, x_R.shape[1:])
                   for i, x_R in enumerate(jax.tree.leaves(initial))])


def digest(tree: Any, note: dict[str, Any]) -> str:
  """Returns the SHA-256 of a tree's paths and arrays, and of a note."""
  note = json.loads(json.dumps(note))  # as read: keys are words
  digest = hashlib.sha256(json.dumps(note, sort_keys=True).encode())
  for path, x in jax.tree.leaves_with_path(tree):
    x = np.asarray(x)
    digest.update(repr(
        (jax.tree_util.keystr(path), x.dtype.str, x.shape)).encode())
    digest.update(np.ascontiguousarray(x))
  return digest.hexdigest()


def _to_tree(state):
  """Returns the state as a dict without empty trees, which Orbax rejects, and
  without client state on disk."""
  return {name: x for name, x in state._asdict().items()
          if jax.tree.leaves(x) and not isinstance(x, DiskClients)}


@functools.cache
def _silence_orbax():
  """Silences Orbax for the rest of the process; call it before Orbax is used.

  It logs each step, and each error that it raises with its traceback. After it
  has read a damaged file, TensorStore calls an event loop that Orbax has
  closed, and Python would print a second traceback.
  """
  # The program may log with absl, too.
  logging.getLogger('absl').addFilter(
      lambda record: 'orbax' not in record.pathname)
  logging.getLogger('asyncio').setLevel('CRITICAL')
  previous_hook = sys.unraisablehook

  def hook(unraisable):
    if 'Event loop is closed' not in str(unraisable.exc_value):
      previous_hook(unraisable)

  sys.unraisablehook = hook
