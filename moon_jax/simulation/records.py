"""Outcomes of rounds, in plain numbers, and the models that clients trained."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from moon_jax.distributed import devices
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Table
from moon_jax.errors import UserError
from moon_jax.models.base import Variables
from moon_jax.simulation.federation import Federation


class RoundRecord(NamedTuple):
  """The outcome of training one round, in plain numbers."""

  metrics: dict[str, Any]  # means over the round's local steps; of drift
  left_out: dict[int, str]  # clients left out by `on_nan`, and why each
  num_examples: int  # examples trained on, every epoch counted
  seconds: float  # of training, without compilation and evaluation


class LastRound(NamedTuple):
  """A round after training.

  Its J jobs are those of all runs of a program; or those of one run, as
  `program.Runs.last_round` returns it.
  """

  table: Table
  data: TrainData
  metrics: RoundMetrics  # without models
  models_J: Variables | tuple[()]  # [J, ...] on the devices, if they are kept

  @property
  def ran_J(self) -> np.ndarray:
    """Whether a job is neither padding nor left out, bool [J]."""
    return (self.table.jobs.num_steps > 0) & self.metrics.finite_J


@dataclasses.dataclass(frozen=True)
class Record:
  """The outcome of one round of `Simulation.rounds`.

  Attributes:
    round: rounds done, from 1.
    metrics: all metrics by name, as in metrics.jsonl.
    seconds: of training, without compilation and evaluation.
  """

  round: int
  metrics: dict[str, Any]
  seconds: float

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__') or 'metrics' not in self.__dict__:
      raise AttributeError(name)  # as copies and pickles are made
    raise AttributeError(
        f'a record has no {name!r}; its metrics are '
        f'{", ".join(self.metrics)}, as record.metrics[NAME]')

  @property
  def train_loss(self) -> float | None:
    """Mean loss over the round's local steps; None if no client trained."""
    return self.metrics.get('train_loss')

  @property
  def test_accuracy(self) -> float | None:
    """A fraction; None in rounds without evaluation."""
    return self.metrics.get('test_accuracy')

  @property
  def test_loss(self) -> float | None:
    """Cross-entropy in nats; None in rounds without evaluation."""
    return self.metrics.get('test_loss')

  @property
  def validation_accuracy(self) -> float | None:
    """A fraction; None without `Federation.validation` or evaluation."""
    return self.metrics.get('validation_accuracy')

  @property
  def validation_loss(self) -> float | None:
    """Cross-entropy in nats; None where `validation_accuracy` is, or if it is
    not finite."""
    return self.metrics.get('validation_loss')


class LocalModels(Mapping[int, Variables]):
  """Maps each client that trained in a round to its model after training.

  Clients that diverged are left out; clients whose message was lost are not.
  Each access copies one model to the host, as numpy arrays; `dict(...)` copies
  all. With several processes, all must read the same clients in the same order,
  and each receives the whole model.

  Examples:
    >>> for client, variables in simulation.local_models().items():
    ...   np.save(f'{client}.npy', variables['params']['out']['kernel'])
  """

  def __init__(self, federation: Federation, last_round: LastRound | None):
    """Copies nothing yet.

    Raises:
      UserError: if rounds do not return local models, or none was trained.
    """
    if not federation.keep_local_models or last_round is None:
      raise UserError(
          'local models need Federation(keep_local_models=True) and a round '
          'that this simulation trained, got none; they are not part of the '
          'state')
    self._models_J, jobs = last_round.models_J, last_round.table.jobs
    slots = np.flatnonzero(last_round.ran_J)
    clients = zip(jobs.client[slots].tolist(), slots.tolist())
    self._slots = dict(sorted(clients))

  def __getitem__(self, client: int) -> Variables:
    j = self._slots[client]
    leaves_J, structure = jax.tree.flatten(self._models_J)
    rows = [_row(x_J, j) for x_J in leaves_J]
    if jax.process_count() > 1:
      rows = _shared(rows, leaves_J)
    return jax.tree.unflatten(structure, rows)

  def __iter__(self) -> Iterator[int]:
    return iter(self._slots)

  def __len__(self) -> int:
    return len(self._slots)


def _row(x_J, j):
  """Returns row j of an array, or None if another process has it."""
  for shard in x_J.addressable_shards:
    first = shard.index[0].start or 0
    if first <= j < first + len(shard.data):
      return np.asarray(shard.data[j - first])
  return None


def _shared(rows, leaves_J):
  """Returns the rows of the process that has them, on every process."""
  bits = [np.zeros(x_J.shape[1:], f'u{x_J.dtype.itemsize}') if row is None
          else row.view(f'u{row.dtype.itemsize}')
          for row, x_J in zip(rows, leaves_J)]
  return [np.asarray(sent).view(x_J.dtype) for sent, x_J in zip(
      devices.sum_over_processes(bits), leaves_J)]
