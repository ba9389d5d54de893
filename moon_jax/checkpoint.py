"""Saves and restores the whole state of a run, atomically, with Orbax.

Of several processes all take part, in a directory that all of them see.
"""

import collections
import logging
import pathlib

import jax
from orbax.checkpoint import v1 as ocp

from moon_jax.engine.state import State
from moon_jax.errors import UserError

_KEPT = 2  # newest checkpoints that stay


class Checkpoints:
  """The checkpoints of one run, a directory each, named by rounds done."""

  def __init__(self, directory: pathlib.Path):
    counts = collections.Counter(d.process_index for d in jax.devices())
    if len(set(counts.values())) > 1:
      raise UserError(
          f'--checkpoint_every: processes of {sorted(counts.values())} devices '
          'cannot write checkpoints, which Orbax wants as many of each for; '
          'show each as many, or give --checkpoint_every=0')
    logging.getLogger('absl').setLevel('ERROR')  # Orbax tells all it does
    self._directory = directory
    policies = ocp.training.preservation_policies
    try:
      self._checkpointer = ocp.training.Checkpointer(
          directory.absolute(), preservation_policy=policies.LatestN(_KEPT))
    except Exception as error:
      raise UserError(
          f'--workdir: {directory} cannot hold checkpoints ({error}); remove '
          'it, or name another directory') from error

  def save(self, state: State) -> None:
    """Writes a state on the host (`state.on_host`), the same in all."""
    self._checkpointer.save(int(state.round), _to_tree(state), overwrite=True)

  def latest(self) -> int:
    """Rounds that the newest one has done; 0 without any."""
    newest = self._checkpointer.latest
    return newest.step if newest else 0

  def restore_latest(self, like: State) -> State | None:
    """The newest state, on the host as `like` is, or None without any."""
    if self._checkpointer.latest is None:
      return None
    try:
      tree = self._checkpointer.load(abstract_state=_to_tree(like))
    except Exception as error:  # Orbax and TensorStore raise many kinds
      path = self._directory / str(self._checkpointer.latest.step)
      reason = str(error).strip().partition('\n')[0][:200]
      raise UserError(
          f'--workdir: the checkpoint {path} is damaged ({reason}). Remove it '
          'to go on from the one before') from error
    return like._replace(**tree)

  def close(self) -> None:
    self._checkpointer.close()


def _to_tree(state: State):
  """The state as Orbax takes it: a dict without what is empty."""
  return {name: x for name, x in state._asdict().items()
          if jax.tree.leaves(x)}
