"""Saves and restores the whole state of a run with Orbax, while rounds go on.

A checkpoint is a directory that Orbax names only once it is whole. It holds a
hash of all that was saved, so that one that is damaged later is told, too. Of
several processes all take part, in a directory that all of them see.
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
from moon_jax.engine.state import State
from moon_jax.errors import UserError

_MAX_CHARACTERS = 100  # characters of a reason


class Checkpoints:
  """The checkpoints of one run, a directory each, named by rounds done."""

  def __init__(self, directory: pathlib.Path, config: Config):
    """Looks at the directory; changes nothing.

    Raises:
      UserError: where these processes cannot write checkpoints.
    """
    if not devices_are_even():
      raise UserError(
          f'--checkpoint_every={config.checkpoint_every}: processes of unlike '
          'numbers of devices cannot use checkpoints, as Orbax has it; show '
          'each as many, or give --checkpoint_every=0 and a new --workdir')
    # Orbax logs all it does, and what it raises as well, with a stack.
    logging.getLogger('absl').setLevel('CRITICAL')
    _quieten_event_loop()
    self._directory, self._config = directory.absolute(), config
    self._damaged = []
    self._writer = None
    self._newest = max(self._steps(), default=0)

  @property
  def newest(self) -> int:
    """Rounds that the newest one has done, begun or whole; 0 without any."""
    return self._newest

  def restore(self, like: State) -> tuple[State, dict[str, Any]] | None:
    """The newest state that is whole, on the host as `like` is, and its note.

    Changes nothing.

    Returns:
      None where there is no checkpoint.

    Raises:
      UserError: where there are, and all of them are damaged.
    """
    reasons = {}
    for step in sorted(self._steps(), reverse=True):
      try:
        logging.disable()  # what is wrong is raised as well
        found, reason = self._load(step, like), ''
      except (MemoryError, PermissionError) as error:  # no fault of its own
        raise UserError(f'--workdir: {self._directory / str(step)} cannot be '
                        f'read ({first_line(error)}); make it so') from error
      except Exception as error:  # Orbax and TensorStore raise many kinds
        if processes.is_lost_peer_error(error):
          raise
        found, reason = None, first_line(error)
      finally:
        logging.disable(logging.NOTSET)
      if processes.all_agree(found is not None):
        self._damaged, self._newest = list(reasons), step
        if reasons and processes.is_first():
          print(f'--workdir: {self._told(reasons)}; the run goes on from round '
                f'{step}', file=sys.stderr, flush=True)
        return found
      reasons[step] = reason or 'another process cannot read it'
    if not reasons:
      return None
    raise UserError(
        f'--workdir: {self._told(reasons)}, and there is no other. Restore one '
        'from a copy, or begin anew in another --workdir')

  def open(self) -> None:
    """Makes the directory ready for `save`; what `restore` found damaged is
    renamed, so that nothing takes it.

    Raises:
      UserError: where it cannot hold checkpoints.
    """
    policies = ocp.training.preservation_policies
    kept = [policies.LatestN(self._config.checkpoint_keep)]
    if self._config.checkpoint_keep_every:
      kept.append(policies.EveryNSteps(self._config.checkpoint_keep_every))
    processes.run_on_first_process(lambda: self._calling(self._set_aside))
    self._writer = self._calling(lambda: ocp.training.Checkpointer(
        self._directory, cleanup_tmp_directories=True,
        preservation_policy=policies.AnyPreservationPolicy(kept)))

  def save(self, state: State, note: dict[str, Any]) -> None:
    """Begins to write; waits for the one before, of which it tells errors.

    Args:
      state: on the host (`state.on_host`), the same in all processes. It may
        change as soon as this returns.
      note: what else is to be known on resuming, as JSON.

    Raises:
      UserError: where this one, or the one before, cannot be written.
    """
    tree, step = _to_tree(state), int(state.round)
    metadata = {'note': note, 'sha256': digest(tree, note)}
    self._calling(lambda: self._writer.save_async(
        step, tree, force=True, custom_metadata=metadata))
    self._newest = step

  def wait(self) -> None:
    """Returns when all is written.

    Raises:
      UserError: where it cannot be.
    """
    self._calling(self._writer.wait)

  def close(self) -> None:
    """Waits, and ends.

    Raises:
      UserError: where it cannot be.
    """
    if self._writer:
      self._calling(self._writer.close)

  def _steps(self):
    """Of what has the name of a whole checkpoint."""
    if not self._directory.is_dir():
      return []
    return [int(path.name) for path in self._directory.iterdir()
            if path.name.isdecimal()]

  def _load(self, step, like):
    path = self._directory / str(step)
    metadata = ocp.metadata(path).custom_metadata
    tree = ocp.load(path, _to_tree(like))
    if metadata['sha256'] != digest(tree, metadata['note']):
      raise ValueError('it does not hold what was saved')
    if _shapes(tree) != _shapes(_to_tree(like)):
      raise ValueError('it is of another network, method or number of clients')
    return like._replace(**tree), metadata['note']

  def _set_aside(self):
    for step in self._damaged:
      number = len(list(self._directory.glob(f'damaged-{step}-*')))
      (self._directory / str(step)).rename(
          self._directory / f'damaged-{step}-{number}')

  def _told(self, reasons):
    which = ', '.join(f'{self._directory / str(step)} ({reason})'
                      for step, reason in reasons.items())
    return f'damaged checkpoint {which}'

  def _calling(self, function: Callable[[], Any]):
    """What the function of Orbax returns; errors are the directory's."""
    try:
      return function()
    except Exception as error:  # of many kinds
      if processes.is_lost_peer_error(error):  # processes meet to write
        raise
      raise UserError(
          f'--workdir: {self._directory} cannot hold checkpoints '
          f'({first_line(error)}). Make it so, or name another directory; '
          'from the last checkpoint that is whole the same command goes on'
          ) from error


def devices_are_even() -> bool:
  """Whether all processes have as many devices, as Orbax wants it."""
  counts = collections.Counter(d.process_index for d in jax.devices())
  return len(set(counts.values())) == 1


def digest(tree: Any, note: dict[str, Any]) -> str:
  """A hash of a tree's names, types, shapes and numbers, and of a note."""
  digest = hashlib.sha256(json.dumps(note, sort_keys=True).encode())
  for path, x in jax.tree.leaves_with_path(tree):
    x = np.asarray(x)
    digest.update(repr(
        (jax.tree_util.keystr(path), x.dtype.str, x.shape)).encode())
    digest.update(np.ascontiguousarray(x))
  return digest.hexdigest()


def _to_tree(state: State):
  """The state as Orbax takes it: a dict without what is empty."""
  return {name: x for name, x in state._asdict().items()
          if jax.tree.leaves(x)}


def _shapes(tree):
  return jax.tree.map(lambda x: (np.shape(x), np.asarray(x).dtype), tree)


def _quieten_event_loop():
  """Where a file is damaged TensorStore answers a loop that Orbax has closed.

  What is wrong has been raised by then; Python would print this with a stack.
  """
  logging.getLogger('asyncio').setLevel('CRITICAL')
  before = sys.unraisablehook

  def hook(unraisable):
    if 'Event loop is closed' not in str(unraisable.exc_value):
      before(unraisable)

  sys.unraisablehook = hook


def first_line(error: Exception) -> str:
  """What an error is, as much of it as a message takes."""
  line = str(error).strip().partition('\n')[0][:_MAX_CHARACTERS]
  return f'{type(error).__name__}: {line}' if line else type(error).__name__
