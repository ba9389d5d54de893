"""The state of the view: a value, updated by the events of a run."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import numbers
from typing import Any

# Fields of a line of metrics.jsonl that have a row of their own.
_NO_SERIES = {'round', 'seconds', 'examples_per_second', 'test_examples',
              'test_loss', 'learning_rate', 'clients_received'}


@dataclasses.dataclass(frozen=True)
class Status:
  """What the view shows. Times are those of `time.monotonic`, in seconds.

  Attributes:
    title: of the run or runs.
    start: when the view began.
    activity: what the run does now; '' if nothing.
    since: when the activity began.
    num_runs: runs that train together.
    num_rounds: of all runs; 0 before they are known.
    rounds_done: of all runs.
    first_rounds: rounds that were done when training began.
    training_start: when training began.
    last_end: when the last round ended.
    series: the values of each metric by round, without rounds that lack it;
      means over the runs that trained a round.
    accuracies: the lowest and the highest test accuracy of the last round of
      several runs.
    best: the best test accuracy and its round, of a single run.
    examples_per_second: of the last round.
    seconds: of the last round, of all runs.
    lane_utilization: the fraction of steps of the lanes that trained, in the
      last round.
    memory: bytes that are used, by name.
  """

  title: str
  start: float
  activity: str = ''
  since: float = 0.
  num_runs: int = 1
  num_rounds: int = 0
  rounds_done: int = 0
  first_rounds: int = 0
  training_start: float = 0.
  last_end: float = 0.
  series: Mapping[str, tuple[float, ...]] = dataclasses.field(
      default_factory=dict)
  accuracies: tuple[float, float] | None = None
  best: tuple[float, int] | None = None
  examples_per_second: float = 0.
  seconds: float = 0.
  lane_utilization: float | None = None
  memory: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def doing(self, activity: str, now: float) -> 'Status':
    """Returns the status with another activity."""
    return dataclasses.replace(self, activity=activity, since=now)

  def training(self, num_rounds: int, rounds_done: int,
               lines: Sequence[Mapping[str, Any]], now: float) -> 'Status':
    """Returns the status when training begins; see `Progress.training`."""
    status = dataclasses.replace(
        self, num_rounds=num_rounds, rounds_done=rounds_done,
        first_rounds=rounds_done, training_start=now, last_end=now)
    for line in lines:
      status = status._with_metrics([line])
    return status

  def after_rounds(self, lines: Sequence[Mapping[str, Any]], now: float,
                   lane_utilization: float | None = None,
                   memory: Mapping[str, int] | None = None) -> 'Status':
    """Returns the status after a round of the runs of these lines."""
    seconds = sum(line['seconds'] for line in lines)
    examples = sum(line['examples_per_second'] * line['seconds']
                   for line in lines)
    return dataclasses.replace(
        self._with_metrics(lines), rounds_done=self.rounds_done + len(lines),
        last_end=now, seconds=seconds, lane_utilization=lane_utilization,
        examples_per_second=examples / max(seconds, 1e-9), memory=memory or {})

  def _with_metrics(self, lines):
    series = dict(self.series)
    for name in {name: None for line in lines for name in line}:
      values = [line[name] for line in lines if _is_number(line.get(name))]
      if values and name not in _NO_SERIES and not name.endswith('_std'):
        series[name] = (*series.get(name, ()), sum(values) / len(values))
    accuracies = [line['test_accuracy'] for line in lines
                  if _is_number(line.get('test_accuracy'))]
    best = self.best
    if accuracies and self.num_runs == 1:
      best = max(best or (-math.inf, 0), (accuracies[0], lines[0]['round']),
                 key=lambda pair: pair[0])
    several = (min(accuracies), max(accuracies)) if accuracies else None
    return dataclasses.replace(
        self, series=series, best=best,
        accuracies=several or self.accuracies if self.num_runs > 1 else None)

  def seconds_left(self, now: float) -> float | None:
    """Returns the estimated seconds until training ends; None if unknown."""
    trained = self.rounds_done - self.first_rounds
    if not trained or self.rounds_done >= self.num_rounds:
      return None
    seconds = (self.last_end - self.training_start) / trained
    left = seconds * (self.num_rounds - self.rounds_done)
    return max(left - (now - self.last_end), 0.)


def _is_number(value):
  return (isinstance(value, numbers.Real) and not isinstance(value, bool)
          and math.isfinite(value))
