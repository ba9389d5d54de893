"""Saves and restores the complete state of a run with Orbax, asynchronously.

A checkpoint is a directory. Orbax gives it its final name once it is complete,
and a hash of its content detects later damage. In a run of several processes
all of them take part, and all must see the same directory.
"""

import collections
from collections.abc import Callable
import hashlib
import json
import logging
import pathlib
import sys
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from moon_jax.config import Config
from moon_jax.distributed import processes
from moon_jax.engine.disk_store import DiskClients
from moon_jax.engine.state import State
from moon_jax.errors import UserError
from moon_jax.rundir import client_rows
from moon_jax.rundir.client_rows import ClientRows

_MAX_CHARACTERS = 100  # of an error in a message


class Checkpoints:
  """The checkpoints of one run.

  Each is a directory whose name is the number of completed rounds.
  """

  def __init__(self, directory: pathlib.Path, config: Config):
    """Reads the names in the directory, if it exists, and changes nothing.

    Raises:
      UserError: if the processes have different numbers of devices.
    """
    if not has_equal_device_counts():
      raise UserError(
          'all processes must have the same number of devices for Orbax to '
          'write checkpoints, got different numbers; give each process the '
          'same number, or use --checkpoint_every=0 with a new --workdir')
    _silence_orbax()
    self._directory, self._config = directory.absolute(), config
    self._rows = ClientRows(self._directory.with_name('client_state'))
    self._damaged = []
    self._writer = None
    self._newest = max(self._steps(), default=0)

  @property
  def newest(self) -> int:
    """Rounds completed at the newest checkpoint; 0 if there is none."""
    return self._newest

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
    for step in sorted(self._steps(), reverse=True):
      try:
        logging.disable()  # Orbax raises the errors that it logs
        restored, reason = self._load(step, like), ''
      except (MemoryError, PermissionError) as error:  # it is not damaged
        raise UserError(
            f'--workdir: {self._directory / str(step)} must be readable, got '
            f'{first_line(error)}; change its permissions or free memory'
            ) from error
      except Exception as error:  # Orbax and TensorStore raise many kinds
        if processes.is_lost_peer_error(error):
          raise
        restored, reason = None, first_line(error)
      finally:
        logging.disable(logging.NOTSET)
      if processes.all_agree(restored is not None):
        self._damaged, self._newest = list(reasons), step
        if reasons and processes.is_first():
          print(f'--workdir: {self._describe(reasons)}; the run resumes after '
                f'round {step}', file=sys.stderr, flush=True)
        return restored
      reasons[step] = reason or 'another process cannot read it'
    if not reasons:
      return None
    raise UserError(
        f'--workdir: {self._describe(reasons)}, and there is no other '
        'checkpoint. Restore one from a copy, or start in another --workdir')

  def open(self) -> None:
    """Prepares the directory for `save`.

    Renames the checkpoints that `restore` found damaged, so that they are not
    read again.

    Raises:
      UserError: if the directory cannot be written.
    """
    policies = ocp.training.preservation_policies
    preserved = [policies.LatestN(self._config.checkpoint_keep)]
    if self._config.checkpoint_keep_every:
      preserved.append(policies.EveryNSteps(self._config.checkpoint_keep_every))
    processes.run_on_first_process(
        lambda: self._convert_errors(self._rename_damaged))
    self._writer = self._convert_errors(lambda: ocp.training.Checkpointer(
        self._directory, cleanup_tmp_directories=True,
        preservation_policy=policies.AnyPreservationPolicy(preserved)))

  def save(self, state: State, note: dict[str, Any]) -> None:
    """Starts to write a checkpoint, after the previous one is complete.

    Args:
      state: on the host (`state.on_host`), the same in all processes. It may
        be modified as soon as this function returns.
      note: further values to restore, serializable as JSON.

    Raises:
      UserError: if this or the previous checkpoint cannot be written.
    """
    tree, step = _to_tree(state), int(state.round)
    metadata = {'note': note, 'sha256': digest(tree, note),
                'variables_sha256': digest(tree['variables'], {})}
    self._clean({self._newest, step})
    if isinstance(state.clients, DiskClients):
      metadata['client_rows'] = self._convert_errors(
          lambda: self._rows.save(step, state.clients))
    self._convert_errors(lambda: self._writer.save_async(
        step, tree, force=True, custom_metadata=metadata))
    self._newest = step

  def wait(self) -> None:
    """Waits until all checkpoints are written.

    Raises:
      UserError: if one cannot be written.
    """
    self._convert_errors(self._writer.wait)

  def close(self) -> None:
    """Waits until all checkpoints are written, and closes Orbax's writer.

    Raises:
      UserError: if a checkpoint cannot be written.
    """
    if self._writer:
      writer, self._writer = self._writer, None
      self._convert_errors(writer.close)
      self._clean(set())

  def _steps(self):
    if not self._directory.is_dir():
      return []
    return [int(path.name) for path in self._directory.iterdir()
            if path.name.isdecimal()]

  def _load(self, step, like):
    path = self._directory / str(step)
    metadata = ocp.metadata(path).custom_metadata
    has_rows = 'client_rows' in metadata
    template = _to_tree(like._replace(
        clients=() if has_rows else client_rows.in_memory(like.clients)))
    tree = ocp.load(path, template)
    if metadata['sha256'] != digest(tree, metadata['note']):
      raise ValueError('its hash differs from that of the saved state')
    if _shapes(tree) != _shapes(template):
      raise ValueError(
          'it is from another network, algorithm or number of clients')
    if has_rows:
      self._rows.load(step, metadata['client_rows'], like.clients)
    elif isinstance(like.clients, DiskClients):
      client_rows.move(tree.pop('clients'), like.clients)
    return like._replace(**tree), metadata['note']

  def _clean(self, steps):
    """Removes the rows of deleted checkpoints, but not those of `steps`."""
    if processes.is_first():
      self._convert_errors(
          lambda: self._rows.clean({*self._steps(), *steps}))

  def _rename_damaged(self):
    for step in self._damaged:
      number = len(list(self._directory.glob(f'damaged-{step}-*')))
      (self._directory / str(step)).rename(
          self._directory / f'damaged-{step}-{number}')

  def _describe(self, reasons):
    checkpoints = ', '.join(f'{self._directory / str(step)} ({reason})'
                            for step, reason in reasons.items())
    return f'damaged checkpoint {checkpoints}'

  def _convert_errors(self, function: Callable[[], Any]):
    try:
      return function()
    except Exception as error:  # Orbax and TensorStore raise many kinds
      if processes.is_lost_peer_error(error):  # processes synchronize to write
        raise
      raise UserError(
          f'--workdir: {self._directory} must be writable for checkpoints, got '
          f'{first_line(error)}. Free space or change its permissions: the '
          'same command resumes from the last complete checkpoint'
          ) from error


def has_equal_device_counts() -> bool:
  """Returns whether all processes have the same number of devices."""
  counts = collections.Counter(d.process_index for d in jax.devices())
  return len(set(counts.values())) == 1


def first_line(error: Exception) -> str:
  """Returns the type and the first line of an error, shortened."""
  line = str(error).strip().partition('\n')[0][:_MAX_CHARACTERS]
  return f'{type(error).__name__}: {line}' if line else type(error).__name__


def digest(tree: Any, note: dict[str, Any]) -> str:
  """Returns the SHA-256 of a tree's paths and arrays, and of a note."""
  digest = hashlib.sha256(json.dumps(note, sort_keys=True).encode())
  for path, x in jax.tree.leaves_with_path(tree):
    x = np.asarray(x)
    digest.update(repr(
        (jax.tree_util.keystr(path), x.dtype.str, x.shape)).encode())
    digest.update(np.ascontiguousarray(x))
  return digest.hexdigest()


def _to_tree(state):
  """Returns the state as a dict without empty trees, which Orbax rejects.

  Client state on disk is not part of it; see `moon_jax.rundir.client_rows`.
  """
  return {name: x for name, x in state._asdict().items()
          if jax.tree.leaves(x) and not isinstance(x, DiskClients)}


def _shapes(tree: Any) -> Any:
  return jax.tree.map(lambda x: (np.shape(x), np.asarray(x).dtype), tree)


def _silence_orbax():
  """Silences Orbax for the rest of the process; call it before Orbax is used.

  It logs each step, and each error that it raises with its traceback. After it
  has read a damaged file, TensorStore calls an event loop that Orbax has
  closed, and Python would print a second traceback.
  """
  logging.getLogger('absl').setLevel('CRITICAL')
  logging.getLogger('asyncio').setLevel('CRITICAL')
  previous_hook = sys.unraisablehook

  def hook(unraisable):
    if 'Event loop is closed' not in str(unraisable.exc_value):
      previous_hook(unraisable)

  sys.unraisablehook = hook
