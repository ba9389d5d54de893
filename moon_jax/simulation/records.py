"""Outcomes of rounds, in plain numbers."""

import dataclasses
from typing import Any
from typing import NamedTuple

from moon_jax.engine.local import TrainData
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Table
from moon_jax.models.base import Variables


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
