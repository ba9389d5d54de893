"""A round of several runs, seen as the round of each run alone."""

from collections.abc import Sequence
from typing import NamedTuple

from jax.sharding import Mesh
import numpy as np

from moon_jax.distributed import devices
from moon_jax.engine import side_by_side
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Table
from moon_jax.engine.side_by_side import Place
from moon_jax.models.base import Variables
from moon_jax.simulation.planner import PlannedRound
from moon_jax.simulation.records import LastRound


class TrainedRound(NamedTuple):
  """A round after training."""

  planned: PlannedRound
  metrics: RoundMetrics  # of all runs, NumPy arrays, without models
  models_J: Variables | tuple[()]  # [J, ...] on the devices, if they are kept
  places: Sequence[Place]  # of each run's table in that of all runs

  def without(self, run: int) -> 'TrainedRound':
    """Returns the round as if a run had not trained in it."""
    tables = list(self.planned.tables)
    tables[run] = None
    return self._replace(planned=self.planned._replace(tables=tables))

  def alone(self, run: int) -> tuple[Table, RoundMetrics]:
    """Returns a run's table and metrics, as if it had been alone."""
    joined, table = self.planned.joined, self.planned.tables[run]
    if joined is None or table is None:
      return self.planned.table, self.metrics
    return table, side_by_side.metrics_of(
        run, self.places[run], joined, self.metrics)

  def last_round(self, run: int, mesh: Mesh) -> LastRound | None:
    """Returns a run's round for evaluations; None if it did not train in it.

    Args:
      run: index of the run.
      mesh: the devices, which share the local models.
    """
    if self.planned.tables[run] is None:
      return None
    table, metrics = self.alone(run)
    models_J = self.models_J
    if self.planned.joined is not None:
      slot_J = _padded(self.planned.joined.slots[run], mesh.size, -1)
      models_J = devices.put(side_by_side.rows_of(
          models_J, np.maximum(slot_J, 0)), mesh, devices.SPLIT)
      table = padded_table(table, mesh.size)
      metrics = _padded_metrics(metrics, mesh.size)
    return LastRound(table, self.planned.data, metrics, models_J)


def padded_table(table: Table, multiple: int) -> Table:
  """Returns the table with a multiple of some number of jobs, for devices."""
  own = table.own
  if own is not None:
    own = own._replace(index_JSB=_padded(own.index_JSB, multiple, -1),
                       num_batches_J=_padded(own.num_batches_J, multiple))
  return table._replace(own=own, jobs=table.jobs._make(
      _padded(x_J, multiple) for x_J in table.jobs))


def _padded_metrics(metrics: RoundMetrics, multiple: int) -> RoundMetrics:
  """Returns the metrics of the jobs of `padded_table`."""
  return metrics._replace(
      drift_J=_padded(metrics.drift_J, multiple),
      finite_J=_padded(metrics.finite_J, multiple, True),
      cosine_J=_padded(metrics.cosine_J, multiple) if len(metrics.cosine_J)
      else ())


def _padded(x_J: np.ndarray, multiple: int, value: int = 0) -> np.ndarray:
  """Pads the first axis to a multiple."""
  return np.pad(x_J, [(0, -len(x_J) % multiple)] + [(0, 0)] * (x_J.ndim - 1),
                constant_values=value)
